/*
 * mpi_exit.h - the end of a process whose ranks are MPI's: in order, or for all of them.
 */
#ifndef MSG_MPI_EXIT_H
#define MSG_MPI_EXIT_H

#include <stdint.h>

/* Whether a process can see its exit status at its end: where the C library has on_exit (glibc). */
int msg_mpi_exit_can(void);

/* From now on the end of this process, not that of a child of it, leaves MPI: it waits for all ranks to end, then calls
 * MPI_Finalize. With an exit status other than 0 it waits `grace_ms` only, and then calls MPI_Abort with that status.
 *
 * To be called once, by all ranks, with MPI initialised and nobody else who finalises it. `library` is a file that is
 * loaded and has MPI's functions, or depends on what has them; `world` and `own` are handles: MPI_COMM_WORLD, and a
 * duplicate of it that nobody else uses. 0, or -1: no such functions, or no on_exit. */
int msg_mpi_exit(const char *library, uintptr_t world, uintptr_t own, int grace_ms);

#endif
