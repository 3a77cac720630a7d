/*
 * faults.h - faults on request: from the environment and from programs (faults.c).
 */
#ifndef VIAKIT_VIA_FAULTS_H
#define VIAKIT_VIA_FAULTS_H

#include "via/nic.h"
#include "viakit.h"

VIP_RETURN via_faults_from_environment(struct via_nic *nic);

#endif
