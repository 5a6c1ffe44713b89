"""Network namespaces: a host for a replica that can vanish, as a cable does when it is pulled."""

import contextlib
import os
import subprocess


def sh(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Host:
    """One namespace with a link to ours. Names carry this process's pid, so that two runs do not meet."""

    made = 0

    def __init__(self):
        Host.made += 1
        number = Host.made
        self.name = f"prf{os.getpid()}-{number}"
        # At most 15 letters for an interface.
        self.near, self.far = f"p{os.getpid()}n{number}", f"p{os.getpid()}f{number}"
        net = f"10.{200 + os.getpid() % 50}.{number % 250}"
        self.near_address, self.address = f"{net}.1", f"{net}.2"
        self.prefix = ["ip", "netns", "exec", self.name]

    def make(self):
        sh("ip", "netns", "add", self.name)
        try:
            sh("ip", "link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.name)
            sh("ip", "address", "add", f"{self.near_address}/24", "dev", self.near)
            sh("ip", "link", "set", self.near, "up")
            self.inside("ip", "address", "add", f"{self.address}/24", "dev", self.far)
            self.inside("ip", "link", "set", "lo", "up")
            self.inside("ip", "link", "set", self.far, "up")
        except OSError:
            self.remove()
            raise
        return self

    def inside(self, *command):
        return sh(*self.prefix, *command)

    def swallow(self):
        """From now on packets go in and nothing comes out: no RST, no ICMP. The neighbour stays known, as that of a router on the way would."""
        mac = self.inside("cat", f"/sys/class/net/{self.far}/address").strip()
        sh("ip", "neighbour", "replace", self.address, "lladdr", mac, "dev", self.near, "nud", "permanent")
        # Taken off our side of the link, which stays up: what is sent to it goes nowhere.
        self.inside("ip", "link", "set", self.far, "down")

    def give_back(self):
        self.inside("ip", "link", "set", self.far, "up")
        with contextlib.suppress(OSError):
            sh("ip", "neighbour", "del", self.address, "dev", self.near)

    def remove(self):
        with contextlib.suppress(OSError):
            sh("ip", "link", "del", self.near)
        with contextlib.suppress(OSError):
            sh("ip", "netns", "del", self.name)


def missing():
    """Why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        Host().make().remove()
    except OSError as error:
        return str(error)
    return None


def netem_missing():
    """Why the kernel cannot delay and lose packets; None if it can."""
    if reason := missing():
        return reason
    host = Host().make()
    try:
        sh("tc", "qdisc", "add", "dev", host.near, "root", "netem", "delay", "1ms")
    except OSError as error:
        return f"no netem in this kernel ({str(error).rsplit(': ', 1)[-1]})"
    finally:
        host.remove()
    return None
