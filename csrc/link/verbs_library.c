/*
 * Loading libibverbs at run time, so that neither building nor running viakit needs it until a NIC verbs:DEVICE is
 * opened. The library loads the user-space part of each card's driver itself (the package ibverbs-providers). It stays
 * loaded: those drivers register state that no call removes.
 *
 * Any thread may call verbs_library(); a mutex orders the first calls. A failure is not stored, because the library may
 * be installed while the process runs.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/explain.h"
#include "base/thread.h"
#include "link/verbs.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ib_library library;
static int loaded;

VK_LOCK_AT_FORK(&mutex, (void)0)

/* Finds a symbol. C has no conversion from the pointer of dlsym() to a function pointer, so the bytes are copied. */
static int find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);
    if (symbol == NULL) {
        vk_explain("verbs: libibverbs.so.1 has no %s: install rdma-core's library of version 1.1 or later", name);
        return 0;
    }
    memcpy(function, &symbol, sizeof symbol);
    return 1;
}

/* Returns 1; or 0, explained, if the library or one of its functions is missing. Then it is unloaded again. */
static int load(void)
{
    void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        vk_explain("verbs: libibverbs cannot be loaded (%.160s): install it, on Debian and Ubuntu by apt-get install "
                   "libibverbs1 ibverbs-providers, on Fedora by dnf install libibverbs",
                   why ? why : "no reason given");
        return 0;
    }
    int all = 1;
#define IB_X(name, result, parameters) all = all && find(handle, "ibv_" #name, &library.name);
    IB_CALLS(IB_X)
#undef IB_X
    if (!all)
        dlclose(handle);
    return all;
}

const struct ib_library *verbs_library(void)
{
    pthread_mutex_lock(&mutex);
    if (!loaded)
        loaded = load();
    pthread_mutex_unlock(&mutex);
    return loaded ? &library : NULL;
}
