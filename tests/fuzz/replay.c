/*
 * replay - gives a fuzz target the inputs of its corpus, once. With it instead of libFuzzer's main a target is an ordinary test.
 *
 *   replay CORPUS...     each a text file: an input per line, in hexadecimal, however long; # begins a comment
 *
 * Exit status: 0 nothing found, 1 no input or an unreadable one; what a target finds ends it by a signal, and the last line on standard
 * error says which input it was.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static char present[512]; /* "corpus:line", for the handler */

static void on_signal(int sig)
{
    static const char text[] = "the input is at ";
    ssize_t written = write(2, text, sizeof text - 1);
    written = write(2, present, strlen(present));
    written = write(2, "\n", 1);
    (void)written;
    signal(sig, SIG_DFL);
    raise(sig);
}

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

/* Returns the number of inputs, -1 if a line is not one. */
static long replay(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    long number = 0, inputs = 0;
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        perror(path);
        return -1;
    }
    while ((n = getline(&line, &room, f)) >= 0) {
        uint8_t *data = malloc(room);
        number++;
        while (n && (line[n - 1] == '\n' || line[n - 1] == ' '))
            n--;
        ssize_t len = data == NULL ? -1 : n == 0 || line[0] == '#' ? 0 : parse(line, n, data);
        snprintf(present, sizeof present, "%s:%ld", path, number);
        if (len > 0) {
            alarm(60); /* one that hangs is a finding, too */
            LLVMFuzzerTestOneInput(data, (size_t)len);
            inputs++;
        }
        free(data);
        if (len < 0) {
            fprintf(stderr, "%s: not a line of hexadecimal digits\n", present);
            inputs = -1;
            break;
        }
    }
    free(line);
    fclose(f);
    return inputs;
}

int main(int argc, char **argv)
{
    long inputs = 0;
    signal(SIGABRT, on_signal);
    signal(SIGALRM, on_signal);
    for (int i = 1; i < argc; i++) {
        long n = replay(argv[i]);
        if (n < 0)
            return 1;
        inputs += n;
    }
    printf("%ld inputs replayed\n", inputs);
    return inputs == 0;
}
