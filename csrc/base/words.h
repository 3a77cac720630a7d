/*
 * Names and texts of codes: a table for each enum, made from the list that makes the enum.
 */
#ifndef VIAKIT_WORDS_H
#define VIAKIT_WORDS_H

#include <stddef.h>

struct vk_word {
    int code;
    const char *name, *text;
};

/* Returns the entry of the code. The name and text of an unknown code are NULL. The search is linear: the tables are
 * short, and a text is never needed on the short path. */
static inline const struct vk_word *vk_find_word(const struct vk_word *words, size_t n, int code)
{
    static const struct vk_word none;
    for (size_t i = 0; i < n; i++)
        if (words[i].code == code)
            return &words[i];
    return &none;
}
#define VK_WORD(words, code) vk_find_word(words, sizeof(words) / sizeof *(words), code)

#endif
