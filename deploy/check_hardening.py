#!/usr/bin/env python3
"""Whether a built program has the hardening of deploy/hardening.cmake: check_hardening.py PROGRAM [--objects BUILD_FOLDER]

Reads the ELF file itself. With --objects every C++ object that the build's compile_commands.json has for a shipped target is looked at too. Prints a
line for each property; exit status 1 if one is missing. What a processor or a compiler cannot have is said and not counted."""

import argparse
import json
import pathlib
import shlex
import struct
import sys

PT_DYNAMIC, PT_INTERP, PT_GNU_STACK, PT_GNU_RELRO, PT_GNU_PROPERTY = 2, 3, 0x6474E551, 0x6474E552, 0x6474E553
DT_NULL, DT_STRTAB, DT_SYMTAB, DT_RPATH, DT_BIND_NOW, DT_RUNPATH, DT_FLAGS, DT_FLAGS_1, DT_STRSZ = 0, 5, 6, 15, 24, 29, 30, 0x6FFFFFFB, 10
X86_FEATURE_1_AND, IBT, SHSTK = 0xC0000002, 1, 2
SHIPPED = ("proto", "gpu", "model", "adapters", "server")
FLAGS = ("-D_FORTIFY_SOURCE=3", "-D_GLIBCXX_ASSERTIONS", "-fPIE", "-fstack-protector-strong")


class Elf:
    def __init__(self, path):
        self.data = pathlib.Path(path).read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"check_hardening: {path} is no 64-bit little-endian ELF file")
        self.type, self.machine = struct.unpack_from("<HH", self.data, 16)
        phoff, shoff = struct.unpack_from("<QQ", self.data, 32)
        phentsize, phnum, shentsize, shnum, shstrndx = struct.unpack_from("<HHHHH", self.data, 54)
        # (type, flags, offset, vaddr, filesz)
        self.segments = [struct.unpack_from("<IIQQQQ", self.data, phoff + i * phentsize)[:4] + (struct.unpack_from("<Q", self.data, phoff + i * phentsize + 32)[0],)
                         for i in range(phnum)]
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, shoff + i * shentsize) for i in range(shnum)] if shoff else []
        names = self.data[headers[shstrndx][4]:headers[shstrndx][4] + headers[shstrndx][5]] if headers else b""
        self.sections = {names[h[0]:names.index(b"\0", h[0])].decode(): (h[4], h[5], h[9]) for h in headers}

    def segment(self, kind):
        return next((s for s in self.segments if s[0] == kind), None)

    def section(self, name):
        offset, size, _ = self.sections.get(name, (0, 0, 0))
        return self.data[offset:offset + size]

    def dynamic(self):
        segment = self.segment(PT_DYNAMIC)
        if segment is None:
            return {}
        out = {}
        for at in range(segment[2], segment[2] + segment[4], 16):
            tag, value = struct.unpack_from("<QQ", self.data, at)
            if tag == DT_NULL:
                break
            out[tag] = value
        return out

    def imports(self):
        strings, symbols = self.section(".dynstr"), self.section(".dynsym")
        out = set()
        for at in range(0, len(symbols), 24):
            name, _, _, index = struct.unpack_from("<IBBH", symbols, at)
            if index == 0 and name:
                out.add(strings[name:strings.index(b"\0", name)].decode())
        return out

    def features(self):
        """The processor features that .note.gnu.property claims."""
        note, out, at = self.section(".note.gnu.property"), 0, 0
        while at + 12 <= len(note):
            n_name, n_description, kind = struct.unpack_from("<III", note, at)
            begin = at + 12 + (n_name + 3) // 4 * 4
            end = begin + n_description
            while kind == 5 and begin + 8 <= end:
                what, size = struct.unpack_from("<II", note, begin)
                if what == X86_FEATURE_1_AND:
                    out |= struct.unpack_from("<I", note, begin + 8)[0]
                begin += 8 + (size + 7) // 8 * 8
            at = (end + 7) // 8 * 8
        return out


def program_findings(path):
    elf = Elf(path)
    dynamic, imports = elf.dynamic(), elf.imports()
    stack = elf.segment(PT_GNU_STACK)
    yield "position independent (PIE)", elf.type == 3 and bool(dynamic.get(DT_FLAGS_1, 0) & 0x08000000)
    yield "read-only relocations (RELRO)", elf.segment(PT_GNU_RELRO) is not None
    yield "all symbols bound at the start (BIND_NOW)", DT_BIND_NOW in dynamic or bool(dynamic.get(DT_FLAGS, 0) & 8) or bool(dynamic.get(DT_FLAGS_1, 0) & 1)
    yield "stack not executable", stack is not None and not stack[1] & 1
    yield "no segment writable and executable", all(not (s[1] & 1 and s[1] & 2) for s in elf.segments)
    yield "no run path of its own", DT_RPATH not in dynamic and DT_RUNPATH not in dynamic
    yield "stack protector", "__stack_chk_fail" in imports
    yield "checked C functions (_FORTIFY_SOURCE)", sum(name.endswith("_chk") for name in imports) >= 3
    yield "checked C++ containers (_GLIBCXX_ASSERTIONS)", any("glibcxx_assert_fail" in name for name in imports)
    if elf.machine == 62:
        yield "shadow stack (CET SHSTK)", bool(elf.features() & SHSTK)


def object_findings(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    root = pathlib.Path(__file__).resolve().parent.parent
    n, lacking, without_cet, cet_asked = 0, [], [], False
    for command in commands:
        file = pathlib.Path(command["directory"], command["file"]).resolve()
        generated = "generated" in file.parts
        # Several files compiled as one are a file of the build's, in the folder of their layer.
        folder = build.resolve() if file.is_relative_to(build.resolve()) else root
        relative = file.relative_to(folder) if file.is_relative_to(folder) else file
        if not generated and relative.parts[0] not in SHIPPED:
            continue
        words = shlex.split(command["command"])
        n += 1
        missing = [flag for flag in FLAGS if flag not in words]
        if missing:
            lacking.append(f"{relative}: {' '.join(missing)}")
        if "-fcf-protection=full" in words:
            cet_asked = True
            made = pathlib.Path(command["directory"], words[words.index("-o") + 1])
            if made.exists() and Elf(made).features() & (IBT | SHSTK) != IBT | SHSTK:
                without_cet.append(str(relative))
    yield f"{n} objects with {' '.join(FLAGS)}" + (f"; not {lacking[0]} and {len(lacking) - 1} more" if lacking else ""), n > 0 and not lacking
    if cet_asked:
        yield f"{n} objects with CET" + (f"; not {without_cet[0]}" if without_cet else ""), not without_cet


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--objects", type=pathlib.Path)
    args = parser.parse_args()
    findings = list(program_findings(args.program)) + (list(object_findings(args.objects)) if args.objects else [])
    for what, there in findings:
        print(f"{'ok   ' if there else 'LACKS'} {what}")
    if Elf(args.program).machine == 62 and not Elf(args.program).features() & IBT:
        print("      branch tracking (CET IBT) is not claimed: Rust's own library is built without landing pads")
    sys.exit(0 if all(there for _, there in findings) else 1)


if __name__ == "__main__":
    main()
