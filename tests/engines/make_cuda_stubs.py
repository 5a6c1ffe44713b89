"""Make empty CUDA libraries so that a CUDA build of torch imports on a machine without CUDA.

Every function answers 100 (cudaErrorNoDevice), so torch sees "no device".
usage: make_cuda_stubs.py TORCH_LIB_DIR      (needs gcc, nm, readelf)
"""

import collections
import pathlib
import re
import subprocess
import sys


def out(*cmd):
    return subprocess.run(cmd, capture_output=True, text=True, check=True).stdout


lib = pathlib.Path(sys.argv[1])
ours = re.compile(r"^lib(cu|nccl|nv)")
need, plain = set(), set()
syms = collections.defaultdict(lambda: collections.defaultdict(set))  # file -> version -> symbols
for so in sorted(lib.glob("*.so*")):
    if so.is_symlink() or (lib / (so.name + ".is-stub")).exists():
        continue
    need |= {m for m in re.findall(r"NEEDED.*\[(.*?)\]", out("readelf", "-d", so)) if ours.match(m)}
    file_of, cur = {}, None
    for line in out("readelf", "-V", "-W", so).splitlines():
        if m := re.search(r"File: (\S+)", line):
            cur = m.group(1)
        elif cur and (m := re.search(r"Name: (\S+)", line)):
            file_of[m.group(1)] = cur
        elif line.startswith("Version "):
            cur = None
    for line in out("nm", "-D", "--undefined-only", so).splitlines():
        name, _, ver = line.split()[-1].partition("@")
        ver = ver.lstrip("@")
        if ver and ours.match(file_of.get(ver, "")):
            syms[file_of[ver]][ver].add(name)
        elif not ver and re.match(r"(cu|__cuda|nccl|nv)", name):
            plain.add(name)
need |= {f for f in syms}
for so in sorted(need):
    if (lib / so).exists() and not (lib / (so + ".is-stub")).exists():
        continue  # a real one is there
    by_ver = {v: set(s) for v, s in syms[so].items()}
    names = set().union(*by_ver.values()) if by_ver else set()
    if so.startswith("libcudart"):  # unversioned symbols resolve from any loaded library
        names |= plain
    c = ['static char z[4096] = "no device (stub)";']
    for n in sorted(names):
        if "ErrorString" in n or "ErrorName" in n or n.startswith("__cudaRegisterFatBinary"):
            c.append(f"void *{n}(void) {{ return z; }}")
        else:
            c.append(f"long {n}(void) {{ return 100; }}")
    src, vs = lib / f"stub_{so}.c", lib / f"stub_{so}.map"
    src.write_text("\n".join(c) + "\n")
    cmd = ["gcc", "-w", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{so}", "-o", str(lib / so), str(src)]
    if by_ver:
        vs.write_text("".join(f"{v} {{ global: {'; '.join(sorted(s))}; }};\n" for v, s in by_ver.items()))
        cmd.insert(1, f"-Wl,--version-script={vs}")
    subprocess.run(cmd, check=True)
    src.unlink()
    vs.unlink(missing_ok=True)
    (lib / (so + ".is-stub")).touch()
    print("stub", so, len(names))
