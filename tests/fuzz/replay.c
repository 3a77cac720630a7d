/* replay - gives a fuzz target the inputs of its corpus, once, and then, on request, as many others as fit the time.
 * With it instead of libFuzzer's main a target is an ordinary test, by any compiler and with or without sanitizers.
 *
 *   replay CORPUS...                         text files: an input per line, in hexadecimal. # begins a comment
 *   replay [-t SECONDS] [-n INPUTS] [-r SEED] CORPUS...
 *                                            then inputs made of these by a few changes each, until the
 *                                            time is over or so many were given
 *
 * libFuzzer records the coverage of each input, which finds new paths and costs more than most inputs. This program
 * does not: it runs the paths that libFuzzer has found with other values, several times as many inputs in the same
 * time. The inputs depend on the corpus and the seed alone. SIGINT or SIGTERM ends it with its count. An input lies in
 * front of an inaccessible page, and the heap must not grow.
 *
 * Exit status: 0 without findings, 1 without an input or with an unreadable one. A finding ends the target by a signal
 * or the sanitizer's status. The last line on standard error is then the input, as a line of a corpus. */
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define MADE_MAX 192 /* longest input that is made here, and the longest part that is looked at of those of a corpus */
#define HANGS_S 30   /* an input that takes longer is a finding, too; two looks at the counter, so up to twice that */
#define GROWTH 1048576 /* bytes that the heap may have more after many inputs than before them */

struct input {
    uint8_t *data;
    size_t len;
};

static struct input *corpus;
static size_t n_corpus, room_corpus;

/* ---------------------------------------------------------------- when something is found */

static const uint8_t *present; /* the input that runs */
static size_t present_len;
static volatile uint64_t n_run;
static char present_line[512]; /* "corpus:line", if it is from a file */

/* Within a signal handler: nothing but write(). */
static void write_out(const char *text, size_t n)
{
    while (n) {
        ssize_t written = write(2, text, n);
        if (written <= 0)
            return;
        text += written;
        n -= (size_t)written;
    }
}

static void write_present(void)
{
    static const char digits[] = "0123456789abcdef", from[] = "the input is from ", text[] = "the input is\n";
    static volatile sig_atomic_t told;
    if (present == NULL || told++)
        return;
    if (*present_line) {
        write_out(from, sizeof from - 1);
        write_out(present_line, strlen(present_line));
        write_out("\n", 1);
    }
    write_out(text, sizeof text - 1);
    for (size_t i = 0; i < present_len; i++) {
        const char two[2] = {digits[present[i] >> 4], digits[present[i] & 15]};
        write_out(two, 2);
    }
    write_out("\n", 1);
}

static void on_signal(int sig)
{
    write_present();
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Every HANGS_S seconds: is it still the same one? */
static void on_time(int sig)
{
    static uint64_t seen;
    uint64_t now = n_run;
    (void)sig;
    if (now == seen && present) {
        static const char text[] = "this input takes for ever\n";
        write_out(text, sizeof text - 1);
        abort();
    }
    seen = now;
}

static volatile sig_atomic_t stopped; /* the user wants the count now */

static void on_stop(int sig)
{
    (void)sig;
    stopped = 1;
}

/* A sanitizer that ends the program calls this instead of sending a signal. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

static void watch(void)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    const struct itimerval period = {{HANGS_S, 0}, {HANGS_S, 0}};
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(write_present);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        if (i == 0 || !__sanitizer_set_death_callback) /* it reports more about the others than this program could */
            signal(fatal[i], on_signal);
    signal(SIGALRM, on_time);
    signal(SIGINT, on_stop);
    signal(SIGTERM, on_stop);
    setitimer(ITIMER_REAL, &period, NULL);
}

/* The present input is printed if this does not return. */
static void run(const uint8_t *data, size_t len)
{
    present = data;
    present_len = len;
    n_run++;
    LLVMFuzzerTestOneInput(data, len);
    present = NULL;
}

/* ---------------------------------------------------------------- the corpus */

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The bytes of a line; -1 if it is not hexadecimal. */
static ssize_t parse(const char *line, ssize_t n, uint8_t *to)
{
    ssize_t len = 0;
    for (ssize_t i = 0; i + 1 < n; i += 2) {
        int high = digit(line[i]), low = digit(line[i + 1]);
        if (high < 0 || low < 0)
            return -1;
        to[len++] = (uint8_t)(high << 4 | low);
    }
    return n % 2 ? -1 : len;
}

/* Longer ones are replayed whole, but change in their first MADE_MAX bytes only. */
static void keep(const uint8_t *data, size_t len)
{
    if (n_corpus == room_corpus) {
        room_corpus = room_corpus ? 2 * room_corpus : 1024;
        corpus = realloc(corpus, room_corpus * sizeof *corpus);
    }
    struct input *i = corpus ? &corpus[n_corpus++] : NULL;
    if (i == NULL || (i->data = malloc(len)) == NULL)
        abort();
    memcpy(i->data, data, len);
    i->len = len < MADE_MAX ? len : MADE_MAX;
}

/* Returns 0, or -1 if a line is not an input. */
static int replay(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    long number = 0;
    int status = 0;
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        perror(path);
        return -1;
    }
    while (status == 0 && (n = getline(&line, &room, f)) >= 0) {
        uint8_t *data = malloc(room);
        number++;
        while (n && (line[n - 1] == '\n' || line[n - 1] == ' '))
            n--;
        ssize_t len = data == NULL ? -1 : n == 0 || line[0] == '#' ? 0 : parse(line, n, data);
        snprintf(present_line, sizeof present_line, "%s:%ld", path, number);
        if (len > 0) {
            keep(data, (size_t)len);
            free(data);
            data = malloc((size_t)len); /* no longer than it is: a sanitizer sees what is read behind it */
            if (data)
                run(memcpy(data, corpus[n_corpus - 1].data, (size_t)len), (size_t)len);
        }
        free(data);
        if (len < 0) {
            fprintf(stderr, "%s: not a line of hexadecimal digits\n", present_line);
            status = -1;
        }
    }
    *present_line = 0;
    free(line);
    fclose(f);
    return status;
}

/* ---------------------------------------------------------------- others */

static uint64_t random_state;

/* Below n (xorshift64*, the high half). */
static uint32_t below(uint32_t n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)(((random_state * 2685821657736338717ull >> 32) * n) >> 32);
}

/* A byte as it is likely to matter: an edge, or any. */
static uint8_t some_byte(void)
{
    static const uint8_t edges[] = {0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 129, 0xC0, 0xF0, 0xFE, 0xFF};
    return below(2) ? edges[below(sizeof edges)] : (uint8_t)below(256);
}

/* Puts n bytes of `from` in at `at`; what would be longer than MADE_MAX falls off the end. */
static size_t insert(uint8_t *p, size_t len, size_t at, const uint8_t *from, size_t n)
{
    uint8_t copy[MADE_MAX]; /* from may lie in p */
    n = n < MADE_MAX - at ? n : MADE_MAX - at;
    memcpy(copy, from, n);
    size_t rest = len - at < MADE_MAX - at - n ? len - at : MADE_MAX - at - n;
    memmove(p + at + n, p + at, rest);
    memcpy(p + at, copy, n);
    return at + n + rest;
}

/* One change of an input of len bytes (1 or more), in place; returns its new length, which is 1 or more. */
static size_t change(uint8_t *p, size_t len)
{
    uint32_t at = below((uint32_t)len), n = 1 + below((uint32_t)(len - at));
    const struct input *other = &corpus[below((uint32_t)n_corpus)];
    uint32_t there = below((uint32_t)other->len), part = 1 + below((uint32_t)other->len - there);
    uint8_t byte = some_byte();
    switch (below(9)) {
    case 0:
        p[at] ^= (uint8_t)(1 << below(8));
        return len;
    case 1:
    case 2:
        p[at] = byte;
        return len;
    case 3:
        p[at] = (uint8_t)(p[at] + below(9) - 4);
        return len;
    case 4:
        return insert(p, len, at, &byte, 1);
    case 5: /* the same once more: a frame that comes twice */
        return insert(p, len, at, p + at, n);
    case 6:
        if (n == len)
            return len;
        memmove(p + at, p + at + n, len - at - n);
        return len - n;
    case 7: /* what another one did */
        return insert(p, len, at, other->data + there, part);
    default:
        part = part < MADE_MAX - at ? part : MADE_MAX - at;
        memcpy(p + at, other->data + there, part);
        return len > at + part ? len : at + part;
    }
}

/* Real time: the target's own clock is its input's. */
static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Bytes that malloc holds, large blocks included. */
static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* Whatever comes first: n inputs, or the time. */
static void make_others(uint64_t n, double seconds)
{
    uint8_t *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), made[MADE_MAX];
    if (page == MAP_FAILED || mprotect(page + 4096, 4096, PROT_NONE) != 0)
        abort();
    double begin = now_s();
    size_t before = 0;
    for (uint64_t i = 0; i < n && !stopped && (i % 1024 || now_s() - begin < seconds); i++) {
        const struct input *from = &corpus[below((uint32_t)n_corpus)];
        size_t len = from->len;
        memcpy(made, from->data, len);
        for (uint32_t changes = 1 + below(4); changes; changes--)
            len = change(made, len);
        /* Against the end of the page, so that a read behind the input faults. */
        run(memcpy(page + 4096 - len, made, len), len);
        /* By then a target has what it keeps for good. */
        if (i == 10000)
            before = heap_bytes();
    }
    if (before && heap_bytes() > before + GROWTH) {
        fprintf(stderr, "the heap has grown by %zu bytes\n", heap_bytes() - before);
        exit(1);
    }
    munmap(page, 8192);
}

int main(int argc, char **argv)
{
    uint64_t n = 0, seed = 0;
    double seconds = 0;
    int c, status = 0;
    if (getrandom(&seed, sizeof seed, 0) < 0 || (seed %= 1000000000) == 0)
        seed = 1;
    while ((c = getopt(argc, argv, "t:n:r:")) != -1)
        if (c == 't')
            seconds = strtod(optarg, NULL);
        else if (c == 'n')
            n = strtoull(optarg, NULL, 10);
        else if (c == 'r')
            seed = strtoull(optarg, NULL, 10);
        else
            return 1;
    watch();
    for (int i = optind; i < argc && status == 0; i++)
        status = replay(argv[i]);
    uint64_t replayed = n_run;
    if (status == 0 && n_corpus && (n || seconds > 0)) {
        random_state = seed * 0x9E3779B97F4A7C15ull | 1;
        printf("seed %llu\n", (unsigned long long)seed);
        fflush(stdout);
        make_others(n ? n : UINT64_MAX, seconds > 0 ? seconds : 1e9);
    }
    printf("%llu inputs replayed, %llu made of them\n", (unsigned long long)replayed,
           (unsigned long long)(n_run - replayed));
    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    free(corpus);
    return status != 0 || n_run == 0;
}
