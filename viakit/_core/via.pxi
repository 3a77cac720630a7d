# NICs, memory regions, virtual interfaces, descriptors and completion queues.
