# What every face of the C library shares: statuses to exceptions, pinned buffers, interruptible waits.
