// The header from C++98: it must declare everything with C linkage and use no C++ keyword. That it compiles is the test.
#include "vipl.h"

int main()
{
    VIP_DESCRIPTOR descriptor;
    descriptor.CS.SegCount = 1;
    descriptor.DS[0].Local.Length = 1;
    VIP_RETURN (*open_nic)(const VIP_CHAR *, VIP_NIC_HANDLE *) = 0;
    return descriptor.Control.SegCount == 1 && open_nic == 0 ? 0 : 1;
}
