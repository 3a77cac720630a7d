import socket

from viakit.testbed import Testbed


def answer(port):
    with socket.create_server(("", port)) as server:
        connection, peer = server.accept()
        with connection:
            connection.sendall(connection.recv(100).upper())
    return f"{socket.gethostname()} answered {peer[0]}"


def ask(address, port):
    while True:
        try:
            with socket.create_connection((address, port), timeout=5) as connection:
                connection.sendall(b"hello")
                return connection.recv(100)
        except ConnectionRefusedError:
            pass  # the other host is not yet listening


if __name__ == "__main__":
    with Testbed(hosts=2, mtu=1500) as testbed:
        a, b = testbed.hosts
        server = b.submit(answer, 7000)
        print(a.call(ask, b.address, 7000))
        print(server.result())
        print(a.run(["uname", "-n"]).stdout)
