/*
 * A program of 1998: compiled with -std=gnu89 and every warning an error, it uses the whole descriptor in both namings,
 * and what goes beyond VIPL.
 * That it compiles is the test.
 */
#include "vipl.h"

#include "bip.h"
#include "viakit.h"

int main(void)
{
    VIP_DESCRIPTOR descriptor;
    viakit_faults faults = VIAKIT_FAULTS_INIT;

    descriptor.CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
    descriptor.CS.SegCount = 2;
    descriptor.CS.Next.AddressBits = 0;
    descriptor.DS[0].Remote.Data.Address = &descriptor;
    descriptor.DS[1].Local.Length = 1;
    descriptor.Control.Status = 0;
    descriptor.Data[1].Handle = 0;
    return sizeof(descriptor) == 64 && descriptor.Control.SegCount == 2 && faults.size == sizeof(faults) ? 0 : 1;
}
