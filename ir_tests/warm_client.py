"""What tests run in the place of Python: hands its command to `warm_python`'s server, lets the process that the server forks have its files, signals
and network, and ends as that process does. A command that needs an interpreter of its own gets one. Loads next to nothing, since it starts often."""

import _socket
import json
import os
import signal
import struct
import sys

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server")
COLD = ("PYTHONHASHSEED", "TRITON_INTERPRET")  # read when Python or a library is loaded
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def main(arguments):
    real = open(os.path.join(os.path.dirname(SERVER), "real")).read()  # noqa: SIM115
    if arguments[:1] == ["-u"]:
        os.environ["PYTHONUNBUFFERED"] = "1"
        arguments = arguments[1:]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c")) or any(name in os.environ for name in COLD):
        os.execv(real, [real, *arguments])
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(SERVER)
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "cores": sorted(os.sched_getaffinity(0))}
    text = json.dumps(request).encode("utf-8", "surrogateescape")
    files = struct.pack("4i", 0, 1, 2, network)
    server.sendmsg([struct.pack("q", len(text))], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    server.sendall(text)
    for n in (0, 1, 2, network):
        os.close(n)  # whoever reads what the process prints sees its end when the process ends
    (pid,) = struct.unpack("q", received(server))
    for number in FORWARDED:
        signal.signal(number, lambda n, _frame: os.kill(pid, n))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    (status,) = struct.unpack("q", received(server))
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def received(server):
    found = server.recv(8)
    if len(found) != 8:
        os._exit(120)  # the server is gone
    return found


main(sys.argv[1:])
