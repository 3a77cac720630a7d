/*
 * test_states.c - docs/states.md is the expectation: every cell of its tables is driven, and the observed result is
 * compared with the cell. test_states [STATES.MD [ROW]]
 *
 * Each cell runs in a process of its own, so that one that hangs or fails leaves the others. The drivers are in
 * states_vi.c (VI and descriptor), states_connection.c and states_peer.c. Each brings its object into the state of a
 * column, makes the event of a row happen, and writes the result in the words of the page. The drivers also list all
 * rows, so the page may not omit one.
 */
#define _DEFAULT_SOURCE
#include <sys/prctl.h>
#include <sys/wait.h>

#include "page.h"
#include "states.h"

#define COLUMNS 8

/* In a child: drives one cell and writes what was seen to the pipe. */
__attribute__((noreturn)) static void child(cell_driver *drive, const char *table, const char *row, int column, int out)
{
    char seen[CELL] = "";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(check_context, sizeof(check_context), "%s: %s, column %d", table, row, column + 1);
    check_deadline(60);
    if (!drive(row, column, seen))
        snprintf(seen, sizeof(seen), "(no driver for this row)");
    if (write(out, seen, strlen(seen)) != (ssize_t)strlen(seen))
        _exit(1);
    exit(0);
}

/* Returns 1 and prints a message if the cell is wrong. */
static int check_cell(cell_driver *drive, const char *table, const char *row, int column, const char *expected)
{
    char seen[CELL];
    int fds[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t pid;
    CHECK_EQ(pipe(fds), 0);
    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        child(drive, table, row, column, fds[1]);
    }
    close(fds[1]);
    while ((got = read(fds[0], seen + n, sizeof(seen) - 1 - n)) > 0)
        n += (size_t)got;
    close(fds[0]);
    seen[n] = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || strcmp(seen, expected)) {
        printf("%s: \"%s\", column %d: the table says \"%s\", seen was \"%s\" (status %d)\n", table, row, column + 1,
               expected, seen, status);
        return 1;
    }
    return 0;
}

/* Read before anything is forked: a child must not share the file's position. */
static char *read_doc(int argc, char **argv)
{
    char path[512], *slash;
    snprintf(path, sizeof(path), "%s", argc > 1 ? argv[1] : __FILE__);
    if (argc <= 1) { /* beside the sources: tests/c/test_states.c -> docs/states.md */
        slash = strrchr(path, '/');
        snprintf(slash ? slash + 1 : path, 64, "../../docs/states.md");
    }
    return page_read(path);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        cell_driver *drive;
        int n_rows; /* that the driver has; an unknown row is wrong in each of its cells */
    } tables[] = {{"vi", drive_vi, 23},
                  {"connection", drive_connection, 10},
                  {"peer", drive_peer, 12},
                  {"descriptor", drive_descriptor, 9}};
    char *rest = read_doc(argc, argv), *line, name[32], *cells[COLUMNS];
    int table = -1, header = 0, n_cells = 0, n_wrong = 0, seen_tables = 0, n_rows[4] = {0};
    while ((line = strsep(&rest, "\n"))) {
        int n;
        /* A comment in the page, invisible to its readers, names the table that follows. */
        if (sscanf(line, "<!-- table: %31[a-z] -->", name) == 1) {
            for (table = 3; table >= 0 && strcmp(name, tables[table].name); table--)
                ;
            CHECK(table >= 0);
            header = 2; /* the head and the rule below it */
            seen_tables++;
            continue;
        }
        if (line[0] != '|') {
            table = header > 0 ? table : -1;
            continue;
        }
        /* The first cell is the event, the others are the states. */
        n = page_split(line, cells, COLUMNS);
        if (table < 0 || header-- > 0 || (argc > 2 && strcmp(argv[2], cells[0])))
            continue;
        header = 0;
        n_rows[table]++;
        for (int i = 1; i < n; i++, n_cells++)
            n_wrong += check_cell(tables[table].drive, tables[table].name, cells[0], i - 1, cells[i]);
    }
    CHECK_EQ(seen_tables, 4);
    CHECK(n_cells > 0);
    /* The tables are complete: none of the events has been taken out of the page. */
    for (int i = 0; i < 4 && argc <= 2; i++)
        CHECK_EQ(n_rows[i], tables[i].n_rows);
    printf("%d cells, %d wrong\n", n_cells, n_wrong);
    return n_wrong ? 1 : 0;
}
