/* resolve.c - prints the addresses that getaddrinfo and gethostbyname give for a name: resolve NAME. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
    struct addrinfo hints, *list = NULL;
    struct hostent *old;
    char text[INET_ADDRSTRLEN];
    int code;
    memset(&hints, 0, sizeof(hints));
    hints.ai_socktype = SOCK_STREAM;
    code = getaddrinfo(argc > 1 ? argv[1] : "", NULL, &hints, &list);
    if (code) {
        fprintf(stderr, "%s\n", gai_strerror(code));
        return 1;
    }
    inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)list->ai_addr)->sin_addr, text, sizeof(text));
    printf("%s", text);
    freeaddrinfo(list);
    old = gethostbyname(argv[1]);
    if (old == NULL)
        return 1;
    inet_ntop(AF_INET, old->h_addr_list[0], text, sizeof(text));
    printf(" %s\n", text);
    return 0;
}
