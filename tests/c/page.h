/* page.h - a page of the documentation as an expectation: its text, and the cells of its tables. */
#ifndef PAGE_H
#define PAGE_H

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

/* Cuts "| a | b |" into at most so many trimmed cells; returns their number. */
static inline int page_split(char *line, char **cells, int most)
{
    int n = 0;
    char *p = strchr(line, '|');
    while (p && n < most) {
        char *end = strchr(++p, '|'), *last;
        if (!end)
            break;
        *end = 0;
        while (isspace((unsigned char)*p))
            p++;
        for (last = end; last > p && isspace((unsigned char)last[-1]);)
            *--last = 0;
        cells[n++] = p;
        p = end;
    }
    return n;
}

/* The text of a page, in memory of this function's own: one page at a time. Fails if it cannot be read. */
static inline char *page_read(const char *path)
{
    static char text[65536];
    FILE *f = fopen(path, "r");
    if (!f)
        FAIL("cannot read %s", path);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    CHECK(n < sizeof(text) - 1);
    fclose(f);
    return text;
}

#endif
