/*
 * mpi_exit.h - the end of a process whose ranks are MPI's: in order, or for all of them.
 */
#ifndef MSG_MPI_EXIT_H
#define MSG_MPI_EXIT_H

#include <stdint.h>

/* Returns 1 if a process can obtain its exit status at its end: if the C library has on_exit (glibc). */
int msg_mpi_exit_can(void);

/* From now on, the end of this process (not of its children) leaves MPI: it waits for all ranks to end, then calls
 * MPI_Finalize. With an exit status other than 0 it waits at most `grace_ms`, and then calls MPI_Abort with that
 * status.
 *
 * To be called once, by all ranks, after MPI is initialised, and if no other code finalises it. `library` is a
 * loaded file that has MPI's functions, or depends on a library that has them. `world` and `own` are handles:
 * MPI_COMM_WORLD, and a duplicate of it with no other use. Returns 0, or -1: no such functions, or no on_exit. */
int msg_mpi_exit(const char *library, uintptr_t world, uintptr_t own, int grace_ms);

#endif
