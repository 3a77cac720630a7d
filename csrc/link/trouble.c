/*
 * Reports a link's last lasting fault to its client, as a sentence. Called by the NIC's owner.
 */
#include <stdarg.h>
#include <stdio.h>

#include "link/link.h"

void link_trouble(struct link_client *c, const char *format, ...)
{
    char text[LINK_TROUBLE];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    c->services->report_trouble(c, text);
}
