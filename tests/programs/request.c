/* request.c - requests a connection once and prints the code's name and the explanation. request DEVICE [HOST]. With
 * "-w" as HOST it waits for requests, and replies to none. */
#include <stdio.h>
#include <string.h>

#include <viakit.h>

int main(int argc, char **argv)
{
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 0, 0, 0, 0, 0}, remote;
    VIP_NET_ADDRESS address[16], caller[16];
    VIP_CONN_HANDLE request;
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    int waits = argc > 2 && strcmp(argv[2], "-w") == 0;
    VIP_RETURN code = VipOpenNic(argv[1], &nic);

    if (code == VIP_SUCCESS)
        code = VipCreateVi(nic, &attributes, NULL, NULL, &vi);
    if (code == VIP_SUCCESS)
        code = VipNSGetHostByName(nic, argc > 2 && !waits ? argv[2] : "localhost", address, 0);
    address->DiscriminatorLen = 3;
    memcpy(address->HostAddress + 6, "ask", 3);
    if (code == VIP_SUCCESS && waits) {
        printf("waiting\n");
        fflush(stdout);
        while ((code = VipConnectWait(nic, address, 30000, caller, &remote, &request)) == VIP_SUCCESS)
            ;
    } else if (code == VIP_SUCCESS)
        code = VipConnectRequest(vi, NULL, address, 5000, &remote);
    printf("%s\n%s\n", viakit_return_name(code), viakit_last_error());
    return VipCloseNic(nic) != VIP_SUCCESS;
}
