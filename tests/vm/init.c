/*
 * init.c - process 1 of a virtual machine of tests/vm. A static program: nothing else is in the initial RAM disk.
 *
 * It loads the modules that /modules lists, in order, and mounts the host's file system over 9p, read-only. A layer in
 * memory on top of it takes everything that the machine writes (overlayfs), so the host's files stay as they are. Then
 * /bin/sh of the host's file system runs the script that the kernel's command line names:
 *
 *     vk_script=PATH vk_share=FOLDER
 *
 * FOLDER is a second share of the host, without a cache: the tests put programs there while the machine runs. When the
 * script ends, the machine switches itself off. Process 1 collects the orphans until then.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARE "trans=virtio,version=9p2000.L,msize=262144,"

static void off(const char *what)
{
    if (what != NULL)
        fprintf(stderr, "vm: %s: %s\n", what, strerror(errno));
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

/* Mount, or switch the machine off. */
static void put(const char *source, const char *target, const char *type, unsigned long flags, const char *options)
{
    mkdir(target, 0755);
    if (mount(source, target, type, flags, options) != 0)
        off(target);
}

/* Load each module of the list. A module that is part of the kernel fails with EEXIST. */
static void load_modules(void)
{
    char name[256];
    FILE *list = fopen("/modules", "re");

    if (list == NULL)
        off("/modules");
    while (fgets(name, sizeof(name), list) != NULL) {
        name[strcspn(name, "\n")] = '\0';
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST))
            off(name);
        close(fd);
    }
    fclose(list);
}

/* Make the host's file system, with a writable layer, the root. */
static void change_root(void)
{
    put("host", "/host", "9p", MS_RDONLY, SHARE "cache=loose");
    put("layer", "/layer", "tmpfs", 0, "mode=0755");
    mkdir("/layer/upper", 0755);
    mkdir("/layer/work", 0755);
    put("root", "/root", "overlay", 0, "lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work");
    if (chdir("/root") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
        off("chroot");
    put("proc", "/proc", "proc", 0, NULL);
    put("sys", "/sys", "sysfs", 0, NULL);
    put("dev", "/dev", "devtmpfs", 0, NULL);
    put("pts", "/dev/pts", "devpts", 0, "mode=0620,ptmxmode=0666");
    put("shm", "/dev/shm", "tmpfs", 0, "mode=1777");
    put("run", "/run", "tmpfs", 0, "mode=0755");
}

int main(void)
{
    const char *script = getenv("vk_script"), *share = getenv("vk_share");

    load_modules();
    change_root();
    if (script == NULL || share == NULL)
        off("vk_script and vk_share on the kernel's command line");
    put("share", share, "9p", 0, SHARE "cache=none");
    int console = open("/dev/console", O_RDWR);
    if (console >= 0) {
        dup2(console, 0);
        dup2(console, 1);
        dup2(console, 2);
    }
    setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
    pid_t child = fork();
    if (child == 0) {
        setsid();
        execl("/bin/sh", "sh", script, (char *)NULL);
        _exit(127);
    }
    for (pid_t ended = 0; ended != child;)
        ended = wait(NULL);
    off(NULL);
}
