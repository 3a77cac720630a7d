// The header from C++98: it must declare all with C linkage and use no C++ keyword. That it compiles is the test.
#include "vipl.h"

#include "bip.h"
#include "viakit.h"

int main()
{
    VIP_DESCRIPTOR descriptor;
    viakit_faults faults = VIAKIT_FAULTS_INIT;
    descriptor.CS.SegCount = 1;
    descriptor.DS[0].Local.Length = 1;
    VIP_RETURN (*open_nic)(const VIP_CHAR *, VIP_NIC_HANDLE *) = 0;
    return descriptor.Control.SegCount == 1 && open_nic == 0 && faults.size == sizeof faults ? 0 : 1;
}
