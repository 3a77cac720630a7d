/*
 * Writes the rings of taps to pcapng. A *file* has the taps of one process that write to it. The rings' records are
 * merged in the order of their times and become blocks. While there is a file, one thread per process does this every
 * few milliseconds; calls that flush, read or close do it at once. All of it runs under one mutex.
 *
 *   tap A: ring \
 *   tap B: ring  >-- earliest first --> out (256 KiB) --> write()            a file
 *   tap C: ring ------------------------------------> the caller's buffer    a tap that is read
 *
 * Lock order: this mutex, then a NIC's ownership. The writer thread never becomes a NIC's owner.
 *
 * The child of a fork has no taps: the parent continues to write, and the child's NICs open files of their own.
 *
 *    the file:   section | interface 0 (frames of A) | interface 1 (events of A) | packet | packet | ...
 *                ... | interface 2 (frames of B) | packets of any of them, by time ... | statistics of A
 *
 * Life of a file:
 *
 *     make_file --first tap attached--> drained by the writer, flush, detach --last tap detached--> statistics, closed
 *                                           '--a write fails--> fd -1: records are dropped, and `error` is kept
 *
 * Invariants. A file is in `files` as long as it has a tap. Its interfaces precede the packets that name them. A file's
 * times never go back, except by a record that became visible more than SETTLE late. The writer thread exists if and
 * only if a tap with a file does, STOPPING aside.
 *
 * Order between the threads: the ring's own (base/ring.h): the producer shows a record after it has filled it, and the
 * consumer reads it after it has seen that. All other state is guarded by `mutex`.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit.h"
#include "base/explain.h"
#include "base/files.h"
#include "base/pcapng.h"
#include "base/plural.h"
#include "base/ring.h"
#include "base/thread.h"
#include "link/frame_format.h"
#include "via/error.h"
#include "via/nic.h"
#include "watch/tap.h"

#define OUT_BYTES (256u << 10)      /* of a file's buffer, so that most system calls write much */
#define LEAST_ROOM (96u << 10)      /* one block of any frame fits into this: a super-frame has at most 64 KiB */
#define PERIOD (2 * VK_MS)          /* the writer's interval while there are records ... */
#define PERIOD_LONGEST (16 * VK_MS) /* ... and its longest interval */
#define SETTLE (2 * VK_MS)          /* records younger than this wait: an earlier one may not be visible yet */
#define PATH_BYTES sizeof(((viakit_tap_info *)0)->file)

/* A capture that is being written, or the blocks of a tap that is read. Guarded by the mutex. */
struct tap_file {
    struct tap_file *next;
    char name[PATH_BYTES]; /* the name as given ... */
    char path[PATH_BYTES]; /* ... and of the file; "" if the tap has no file */
    int fd;                /* -1: read by viakit_tap_read, or the write failed */
    int error;             /* of the first write that failed: -errno */
    struct via_tap *taps;
    uint32_t n_interfaces;
    uint64_t n_written;       /* bytes */
    struct pcapng_buffer out; /* headers and packets that are not written yet */
};

/* Guards everything here but the rings' producers. `changed`: writer_state has changed, or the writer should look. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct tap_file *files;
static pthread_t writer;
static enum { NO_WRITER, WRITING, STOPPING } writer_state;
static uint64_t clock_offset; /* CLOCK_REALTIME - CLOCK_MONOTONIC at the first use in the process */

/* The file that this process wrote for VIAKIT_TAP, and the name given: a later NIC continues the file. */
static char written[PATH_BYTES], written_for[PATH_BYTES];

static int write_out(struct tap_file *f);
static int drain(struct tap_file *f, struct pcapng_buffer *to, uint64_t until);

void via_tap_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void via_tap_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* Closes the copies of the descriptors without writing; the parent writes the contents of the buffers. */
static void child_of_fork(void)
{
    for (struct tap_file *f = files; f; f = f->next)
        if (f->fd >= 0)
            close(f->fd);
    files = NULL;
    writer_state = NO_WRITER;
    written[0] = written_for[0] = 0;
    pthread_cond_init(&changed, NULL);
}

VK_LOCK_AT_FORK(&mutex, child_of_fork())

/* Writes the remaining records of a program that ends without closing its NICs. If another thread holds the mutex and
 * does not release it, because it writes to a full pipe, the records are lost. */
__attribute__((destructor)) static void finish(void)
{
    vk_exit_begin();
    if (!vk_exit_lock(&mutex))
        return;
    for (struct tap_file *f = files; f; f = f->next)
        if (f->fd >= 0)
            drain(f, &f->out, VK_NEVER);
    pthread_mutex_unlock(&mutex);
}

/* ---------------------------------------------------------------- names */

/* Writes NAME-PID.EXT for NAME.EXT, and with a number NAME-PID-NUMBER.EXT. A dot in a folder's name, or at the
 * beginning of the file's, starts no extension. */
static void put_number(char *to, size_t size, const char *path, int number)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    size_t stem = dot && dot > (slash ? slash + 1 : path) ? (size_t)(dot - path) : strlen(path);
    if (number)
        snprintf(to, size, "%.*s-%d-%d%s", (int)stem, path, (int)getpid(), number, path + stem);
    else
        snprintf(to, size, "%.*s-%d%s", (int)stem, path, (int)getpid(), path + stem);
}

/* Expands a name: %p is the process number; a folder gets a file per process. Returns -ENAMETOOLONG if the path does
 * not fit. Only the first %p counts. */
static int expand_name(const char *name, char *path)
{
    struct stat s;
    const char *p = strstr(name, "%p");
    int n;
    if (p)
        n = snprintf(path, PATH_BYTES, "%.*s%d%s", (int)(p - name), name, (int)getpid(), p + 2);
    else if (stat(name, &s) == 0 && S_ISDIR(s.st_mode))
        n = snprintf(path, PATH_BYTES, "%s/%s-%d.pcapng", name, program_invocation_short_name, (int)getpid());
    else
        n = snprintf(path, PATH_BYTES, "%s", name);
    return n < 0 || (size_t)n + 24 >= PATH_BYTES ? -ENAMETOOLONG : 0; /* 24: for put_number */
}

/* Opens and locks the file. If another process is writing it, opens one beside it with this process's number. Returns
 * the descriptor, or -errno. */
static int open_file(char *path, int append)
{
    char wanted[PATH_BYTES];
    strcpy(wanted, path);
    for (int i = 0; i < 100; i++) {
        /* 0600: a capture contains the programs' messages. Truncated only after it is locked, because it may be another
         * process's. O_NOCTTY and the test for a regular file: it may be a terminal or a pipe. */
        int fd = vk_file_above(open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600));
        if (fd < 0)
            return -errno;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
            struct stat s;
            if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && (append ? lseek(fd, 0, SEEK_END) : ftruncate(fd, 0)) < 0) {
                int error = -errno;
                close(fd);
                return error;
            }
            return fd;
        }
        close(fd);
        append = 0;
        put_number(path, PATH_BYTES, wanted, i);
    }
    return -EBUSY;
}

/* ---------------------------------------------------------------- blocks */

/* Returns the nanoseconds between the two clocks. Both cannot be read at one moment. The second reading is assumed to
 * lie in the middle between two readings of the first; of several tries the one with the closest readings counts. It is
 * measured once. A later step of the system's clock does not change it, so the times of a capture never go back. */
static uint64_t offset_of_clocks(void)
{
    uint64_t best = VK_NEVER, offset = 0;
    for (int i = 0; i < 5; i++) {
        struct timespec t;
        uint64_t before = vk_now();
        clock_gettime(CLOCK_REALTIME, &t);
        uint64_t took = vk_now() - before;
        if (took < best) {
            best = took;
            offset = (uint64_t)t.tv_sec * VK_SECOND + (uint64_t)t.tv_nsec - before - took / 2;
        }
    }
    return offset;
}

/* Writes the first block of a file. The comments here and below are "viakit" and NAME=VALUE words, which viakit's
 * readers of captures parse. */
static void put_section(struct tap_file *f)
{
    char comment[160];
    snprintf(comment, sizeof comment, "viakit pid=%d clock_offset_ns=%llu program=%.64s", (int)getpid(),
             (unsigned long long)clock_offset, program_invocation_short_name);
    pcapng_section(&f->out, "viakit", comment);
}

/* Writes the header of an interface. Frames and events have one each, because their link types differ. 14: the Ethernet
 * header that put_record() adds. */
static void put_interface(struct tap_file *f, struct via_tap *tap, int events)
{
    const struct via_nic *nic = tap->nic;
    const uint8_t *a = nic->limits.address;
    char name[80], description[160], comment[240];
    snprintf(name, sizeof name, "%s%s", nic->device, events ? " events" : "");
    snprintf(description, sizeof description, "VIA NIC %s of %.32s, process %d%s", nic->device,
             program_invocation_short_name, (int)getpid(), events ? ": the life of descriptors" : "");
    snprintf(comment, sizeof comment,
             "viakit role=%s pid=%d link=%s port=%u address=%02x:%02x:%02x:%02x:%02x:%02x lossless=%d device=%s "
             "program=%.32s",
             events ? "events" : "frames", (int)getpid(), nic->ops->about.name, nic->limits.port, a[0], a[1], a[2],
             a[3], a[4], a[5], nic->ops->about.lossless, nic->device, program_invocation_short_name);
    pcapng_interface(&f->out, events ? PCAPNG_USER0 : PCAPNG_ETHERNET,
                     events || !tap->snap_len ? 0 : tap->snap_len + 14, name, description, comment, events ? NULL : a);
    *(events ? &tap->event_interface : &tap->frame_interface) = f->n_interfaces++;
}

/* Writes the record as a block. Returns 0 if there is no space for it. On success returns the block's length, and the
 * loss before this record has been reported. */
static size_t put_record(struct via_tap *tap, struct pcapng_buffer *to, const struct vk_record *record)
{
    struct pcapng_packet p = {0};
    uint32_t lost;
    uint8_t ether[14];
    struct iovec iov[2];
    char comment[120];
    size_t len;
    p.iov = iov;
    /* An event is a packet of its interface, with the struct viakit_event as its bytes. A frame gets an Ethernet header
     * made of the two stations, whatever its link, so that every reader of captures recognizes it. */
    if (record->kind == TAP_EVENT) {
        const struct tap_event *e = (const struct tap_event *)(const void *)record;
        lost = (uint32_t)e->lost;
        p.interface = tap->event_interface;
        p.time = e->time + clock_offset;
        p.len = p.captured = sizeof e->event;
        iov[0] = (struct iovec){(void *)(uintptr_t)&e->event, sizeof e->event};
        p.n_iov = 1;
    } else {
        const struct tap_frame *r = (const struct tap_frame *)(const void *)record;
        lost = r->lost;
        memcpy(ether, r->to, 6);
        memcpy(ether + 6, r->from, 6);
        ether[12] = WIRE_ETHERTYPE >> 8;
        ether[13] = WIRE_ETHERTYPE & 0xFF;
        p.interface = tap->frame_interface;
        p.time = r->time + clock_offset;
        p.len = r->len + (uint32_t)sizeof ether;
        p.captured = r->captured + (uint32_t)sizeof ether;
        p.direction = r->out ? PCAPNG_OUT : PCAPNG_IN;
        p.comment = r->note;
        iov[0] = (struct iovec){ether, sizeof ether};
        iov[1] = (struct iovec){(void *)(uintptr_t)r->bytes, r->captured};
        p.n_iov = 2;
    }
    /* Modulo 2^32, like the record's count. */
    p.lost_before = lost - tap->lost_reported;
    if (p.lost_before && p.comment == NULL) {
        snprintf(comment, sizeof comment, "%llu records before this one were lost: the tap's ring was full",
                 (unsigned long long)p.lost_before);
        p.comment = comment;
    }
    len = pcapng_packet(to, &p);
    if (len)
        tap->lost_reported = lost;
    return len;
}

/* ---------------------------------------------------------------- draining */

/* Returns the record's time: nanoseconds of the monotonic clock. */
static uint64_t time_of(const struct vk_record *r)
{
    return ((const struct tap_event *)(const void *)r)->time; /* at the same offset in both kinds */
}
_Static_assert(offsetof(struct tap_event, time) == offsetof(struct tap_frame, time), "time_of");

/* Writes `out`. Pipes and full disks may accept it in pieces or not at all. Returns 0, or -errno of the first write
 * that failed. The buffer is empty afterwards in any case. */
static int write_out(struct tap_file *f)
{
    size_t done = 0;
    while (f->fd >= 0 && done < f->out.used) {
        ssize_t n = write(f->fd, f->out.bytes + done, f->out.used - done);
        if (n > 0) {
            done += (size_t)n;
            f->n_written += (size_t)n;
        } else if (n < 0 && errno != EINTR) {
            /* Keep the first error. After it nothing more is written, and drained records are dropped. */
            f->error = f->error ? f->error : -errno;
            close(f->fd);
            f->fd = -1;
        }
    }
    f->out.used = 0;
    return f->error;
}

/* Moves records older than `until` to the buffer, earliest first; a file's buffer is written when it is full, and at
 * the end. Returns the number of records moved. Stops when a buffer that cannot be written is full. This is a merge:
 * each ring is in order, so the earliest of their first records is the earliest of all. A file has few taps, so each
 * step looks at all of them. */
static int drain(struct tap_file *f, struct pcapng_buffer *to, uint64_t until)
{
    int n = 0;
    for (;;) {
        const struct vk_record *first = NULL;
        struct via_tap *of = NULL;
        for (struct via_tap *t = f->taps; t; t = t->next) {
            const struct vk_record *r = vk_ring_next(&t->ring);
            if (r && time_of(r) < until && (first == NULL || time_of(r) < time_of(first))) {
                first = r;
                of = t;
            }
        }
        if (first == NULL)
            break;
        int is_file = to == &f->out;
        if (is_file && to->size - to->used < LEAST_ROOM)
            write_out(f);
        /* At its maximum size the file receives no more packets. Omitted ones are counted, so the program never waits.
         */
        if (is_file && of->file_bytes && f->n_written + to->used >= of->file_bytes)
            of->skipped++;
        else if (put_record(of, to, first) == 0 && !is_file)
            break;
        vk_ring_consume(&of->ring, first);
        n++;
    }
    if (to == &f->out)
        write_out(f);
    return n;
}

/* The writer thread. It holds the mutex except while it sleeps. The newest records stay in the rings (SETTLE), because
 * another ring's owner may be about to show an earlier one. It handles only taps with a file. A tap that is read is
 * drained by its reader. */
static void *write_files(void *unused)
{
    uint64_t period = PERIOD;
    (void)unused;
    prctl(PR_SET_NAME, "viakit-tap");
    pthread_mutex_lock(&mutex);
    while (writer_state == WRITING) {
        struct timespec t;
        int n = 0;
        for (struct tap_file *f = files; f; f = f->next)
            if (f->path[0])
                n += drain(f, &f->out, vk_now() - SETTLE);
        /* A tap that records nothing costs a wake-up every PERIOD_LONGEST. */
        period = n ? PERIOD : period * 2 < PERIOD_LONGEST ? period * 2 : PERIOD_LONGEST;
        clock_gettime(CLOCK_REALTIME, &t);
        /* pthread_cond_timedwait() needs a time of day. */
        t.tv_nsec += (long)period;
        if (t.tv_nsec >= (long)VK_SECOND) {
            t.tv_nsec -= (long)VK_SECOND;
            t.tv_sec++;
        }
        if (writer_state == WRITING)
            pthread_cond_timedwait(&changed, &mutex, &t);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Starts the writer thread; the caller holds the mutex. Returns 0, or -errno. A thread that is about to end cannot be
 * reused: wait for its end, then start a new one. */
static int start_writer(void)
{
    while (writer_state == STOPPING) /* another thread waits for the last one to end */
        pthread_cond_wait(&changed, &mutex);
    if (writer_state == WRITING)
        return 0;
    writer_state = WRITING;
    int error = vk_thread_start(&writer, write_files, NULL);
    if (error)
        writer_state = NO_WRITER;
    return -error;
}

/* Stops the writer thread, unless a file is left. The caller holds the mutex, which is unlocked while the thread ends,
 * because the thread needs it. STOPPING keeps other threads from starting or stopping a writer meanwhile. */
static void stop_writer(void)
{
    if (writer_state != WRITING)
        return;
    for (struct tap_file *f = files; f; f = f->next)
        if (f->path[0])
            return;
    writer_state = STOPPING;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_join(writer, NULL);
    pthread_mutex_lock(&mutex);
    writer_state = NO_WRITER;
    pthread_cond_broadcast(&changed);
}

/* ---------------------------------------------------------------- attaching */

/* Finds a file by the name as given. NULL finds none: each tap that is read has a file struct of its own. */
static struct tap_file *find_file(const char *name)
{
    for (struct tap_file *f = files; f; f = f->next)
        if (name && strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

/* Frees a file. Unwritten data is lost, so the caller must have drained it. Closing the descriptor unlocks the file. */
static void free_file(struct tap_file *file)
{
    struct tap_file **p = &files;
    while (*p && *p != file)
        p = &(*p)->next;
    if (*p)
        *p = file->next;
    if (file->fd >= 0)
        close(file->fd);
    free(file->out.bytes);
    free(file);
}

/* Creates a file, with its first block. Returns NULL and sets *error on failure. `name` NULL: for a tap that is read.
 * `append`: for VIAKIT_TAP, whose later NICs continue the file. The file is in the list `files`, and attach adds the
 * first tap. */
static struct tap_file *make_file(const char *name, int append, int *error)
{
    struct tap_file *f = calloc(1, sizeof *f);
    if (f)
        f->out = (struct pcapng_buffer){malloc(OUT_BYTES), 0, OUT_BYTES};
    if (f == NULL || f->out.bytes == NULL) {
        free(f);
        *error = -ENOMEM;
        return NULL;
    }
    f->fd = -1;
    if (name) {
        *error = strlen(name) < sizeof f->name && *name ? expand_name(name, f->path) : -ENAMETOOLONG;
        /* A second NIC tapped by VIAKIT_TAP after the first one's file was closed: continue behind that. */
        int again = append && strcmp(name, written_for) == 0;
        if (again)
            strcpy(f->path, written);
        if (*error == 0 && (f->fd = open_file(f->path, again)) < 0)
            *error = f->fd;
        if (*error) {
            free(f->out.bytes);
            free(f);
            return NULL;
        }
        strcpy(f->name, name);
        if (append) {
            strcpy(written, f->path);
            strcpy(written_for, name);
        }
    }
    if (clock_offset == 0)
        clock_offset = offset_of_clocks();
    put_section(f);
    f->next = files;
    files = f;
    return f;
}

/* The interfaces are written at once, because a packet must not precede the interface that it names. */
int tap_file_attach(struct via_tap *tap, const char *name, int append)
{
    int error = 0;
    struct tap_file *f = find_file(name);
    if (f == NULL)
        f = make_file(name, append, &error);
    if (f == NULL) {
        vk_explain("tap: %.256s: %s", name ? name : "", strerror(-error));
        return error;
    }
    if (tap->frames)
        put_interface(f, tap, 0);
    if (tap->events)
        put_interface(f, tap, 1);
    tap->file = f;
    tap->next = f->taps;
    f->taps = tap;
    if (f->path[0])
        error = start_writer();
    if (error) {
        vk_explain("tap: no thread to write %.256s: %s", f->path, strerror(-error));
        f->taps = tap->next;
        if (f->taps == NULL)
            free_file(f);
    }
    return error;
}

/* In this order: the records, the statistics that end the capture, and then the last tap closes its file. A tap that is
 * read loses the records that were not read. */
int tap_file_detach(struct via_tap *tap)
{
    struct tap_file *f = tap->file;
    int is_file = f->path[0] != 0;
    if (is_file)
        drain(f, &f->out, VK_NEVER);
    if (is_file && tap->frames)
        pcapng_statistics(&f->out, tap->frame_interface, vk_now() + clock_offset, tap->n_sent + tap->n_received,
                          tap->ring.lost + tap->skipped);
    int error = is_file ? write_out(f) : 0;
    struct via_tap **p = &f->taps;
    while (*p != tap)
        p = &(*p)->next;
    *p = tap->next;
    if (f->taps == NULL) {
        free_file(f);
        stop_writer();
    }
    return error;
}

/* A tap that is read has nothing to flush: its reader takes the records. */
int tap_file_flush(struct via_tap *tap)
{
    struct tap_file *f = tap->file;
    if (f->path[0])
        drain(f, &f->out, VK_NEVER);
    return f->error;
}

/* Blocks are never divided, so a reader can append what it gets. A buffer that is too short is an error without a loss:
 * the record stays in the ring. */
VIP_RETURN tap_file_read(struct via_tap *tap, void *buffer, size_t len, size_t *n)
{
    struct tap_file *f = tap->file;
    struct pcapng_buffer b = {buffer, 0, len};
    if (f->path[0])
        return vk_fail(VIP_INVALID_STATE, "viakit_tap_read: this tap writes %s", f->path);
    if (f->out.used) { /* section and interface headers */
        if (f->out.used > len)
            return vk_fail(VIP_INVALID_PARAMETER, "viakit_tap_read: the buffer is too short: give at least %zu byte%s",
                           f->out.used, vk_s(f->out.used));
        memcpy(buffer, f->out.bytes, f->out.used);
        b.used = f->out.used;
        f->out.used = 0;
    }
    drain(f, &b, VK_NEVER);
    if (b.used == 0 && vk_ring_next(&tap->ring))
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_tap_read: the next block does not fit into %zu byte%s", len,
                       vk_s(len));
    *n = b.used;
    return VIP_SUCCESS;
}

const char *tap_file_path(const struct via_tap *tap)
{
    return tap->file->path;
}
