/*
 * The table of virtual time, across libraries. The rooms above the provider may be in another shared object than the
 * links, with a copy of base/ and so of vk_virtual (viakit/_core.pyx). They adopt the provider's table before they
 * wait or charge. The table stays valid when the NIC closes: its functions then have no effect.
 */
#ifndef VIAKIT_VIRTUAL_TABLE_H
#define VIAKIT_VIRTUAL_TABLE_H

#include "base/virtual.h"
#include "viakit.h"

/* Call it after a NIC was opened. */
static inline void vk_virtual_adopt(void)
{
    const struct vk_virtual *table = viakit_virtual_table();
    if (vk_unlikely(table != NULL))
        vk_store_release(&vk_virtual, table);
}

#endif
