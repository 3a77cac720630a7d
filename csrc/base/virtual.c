/* See virtual.h. */
#include "base/virtual.h"

const struct vk_virtual *vk_virtual;
