/* Singly linked lists: the head is a pointer to the first element, and `next` the member that leads on. */
#ifndef VIAKIT_LIST_H
#define VIAKIT_LIST_H

#include <stddef.h>

/* Adds the element behind the last one. It must not be on the list already. The time grows with the length of the list,
 * so these lists are short. The caller holds whatever protects the list. */
#define VK_LIST_APPEND(head, element, next) \
    do {                                    \
        __typeof__(element) *at_ = &(head); \
        while (*at_)                        \
            at_ = &(*at_)->next;            \
        (element)->next = NULL;             \
        *at_ = (element);                   \
    } while (0)

/* Removes the element, if it is on the list. */
#define VK_LIST_REMOVE(head, element, next) \
    do {                                    \
        __typeof__(element) *at_ = &(head); \
        while (*at_ && *at_ != (element))   \
            at_ = &(*at_)->next;            \
        if (*at_)                           \
            *at_ = (element)->next;         \
    } while (0)

#endif
