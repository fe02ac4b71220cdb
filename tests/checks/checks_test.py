#!/usr/bin/env python3
"""The repository checks catch what they are for."""

import pathlib
import tempfile
import unittest

import check_layering
import check_ptxas
import check_tree
import check_types


class Layering(unittest.TestCase):
    def assert_rejected(self, path, include):
        self.assertEqual(len(check_layering.violations_of(path, f"#pragma once\n#include {include}\n")), 1, (path, include))

    def assert_accepted(self, path, include):
        self.assertEqual(check_layering.violations_of(path, f"#include {include}\n"), [], (path, include))

    def test_upward_includes_are_rejected(self):
        self.assert_rejected("core/dtype.cpp", '"model/config.h"')
        self.assert_rejected("model/decoder.cpp", '"runtime/engine.h"')
        self.assert_rejected("runtime/engine.cpp", '"validate/validate.h"')

    def test_stages_do_not_include_each_other(self):
        for own in check_layering.STAGES:
            for other in check_layering.STAGES - {own}:
                self.assert_rejected(f"{own}/a.cpp", f'"{other}/b.h"')

    def test_the_pipeline_composes_stages(self):
        self.assert_accepted("convert/pipeline.cpp", '"export/export.h"')
        self.assert_accepted("convert/main.cpp", '"validate/validate.h"')
        self.assert_rejected("convert/latent/group_svd.cpp", '"export/export.h"')

    def test_folders_of_the_runtime_are_layers(self):
        self.assert_rejected("runtime/store/kv_cache.cpp", '"runtime/compression/coding.h"')
        self.assert_rejected("runtime/engine.cpp", '"runtime/gpu/gpu_engine.h"')
        self.assert_accepted("runtime/gpu/gpu_engine.cpp", '"runtime/engine.h"')

    def test_tasks_know_no_model(self):
        self.assert_rejected("validate/tasks/niah.cpp", '"runtime/engine.h"')
        self.assert_rejected("validate/tasks/niah.cpp", '"validate/validate.h"')
        self.assert_accepted("validate/validate.cpp", '"validate/tasks/task.h"')

    def test_kernels_know_only_themselves(self):
        self.assert_rejected("runtime/kernels/attend.cpp", '"core/error.h"')
        self.assert_accepted("runtime/kernels/attend.cpp", '"runtime/kernels/attend.h"')
        self.assert_accepted("runtime/engine.cpp", '"runtime/kernels/attend.h"')

    def test_libraries_see_neither_torch_in_core_nor_the_command_line(self):
        self.assert_rejected("core/dtype.h", "<ATen/ATen.h>")
        self.assert_rejected("tests/model/decoder_test.cpp", "<torch/torch.h>")
        self.assert_rejected("convert/convert.cpp", "<CLI/CLI.hpp>")
        self.assert_accepted("convert/main.cpp", "<CLI/CLI.hpp>")

    def test_relative_includes_are_rejected(self):
        self.assert_rejected("core/dtype.cpp", '"dtype.h"')


class Types(unittest.TestCase):
    def test_one_name_is_one_type(self):
        one = "namespace kvc {\nstruct Segment {\n  int first = 0;\n};\n}  // namespace kvc\n"
        other = "namespace kvc {\nenum class Kind { kA };\nclass Segment final : public Base {\n};\n}\n"
        self.assertEqual(len(check_types.violations_of({"a.h": one, "b.h": other})), 1)
        self.assertEqual(check_types.violations_of({"a.h": one}), [])

    def test_other_scopes_are_other_types(self):
        local = "namespace kvc {\nnamespace {\nstruct Segment {};\n}\nvoid f() { struct Segment { int x; }; }\n}\n"
        nested = "namespace kvc {\nclass Engine {\n  struct Segment {};\n};\nstruct Segment;\n}\n"
        own = "namespace kvc {\nstruct Segment {};\n}\n"
        self.assertEqual(check_types.violations_of({"a.cpp": local, "b.h": nested, "c.h": own}), [])
        self.assertEqual(check_types.types_of(nested), ["kvc::Engine"])


class Tree(unittest.TestCase):
    def test_machine_paths_and_registries_are_rejected(self):
        for line in ("cd /work/main", "path = '/home/someone/x'", "--index-url https://pypi.org/simple", "// TODO later",
                     "// Of each layer."):
            self.assertEqual(len(check_tree.violations_of("scripts/a.sh", line)), 1, line)

    def test_other_paths_pass(self):
        for line in ("build/work/x", "$HOME/work/file", "https://example.org/work/a", "/tmp/x"):
            self.assertEqual(check_tree.violations_of("scripts/a.sh", line), [], line)

    def test_scripts_can_be_run_by_their_names(self):
        with tempfile.TemporaryDirectory() as directory:
            script, header = (pathlib.Path(directory) / name for name in ("a.py", "a.h"))
            script.write_text("#!/usr/bin/env python3\n")
            header.write_text("// #!\n")
            self.assertTrue(check_tree.is_script_without_leave(script))
            self.assertFalse(check_tree.is_script_without_leave(header))
            script.chmod(0o755)
            self.assertFalse(check_tree.is_script_without_leave(script))


PTXAS = """ptxas info    : Compiling entry function '_Z3oneP' for 'sm_90a'
ptxas info    : Function properties for _Z3oneP
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4096 bytes smem
ptxas info    : Compiling entry function '_Z3twoP' for 'sm_90a'
    48 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 120000 bytes smem
"""


class Ptxas(unittest.TestCase):
    def test_reads_every_kernel(self):
        one, two = check_ptxas.parse(PTXAS)
        self.assertEqual((one.name, one.registers, one.shared, one.frame, one.spilled), ("_Z3oneP", 32, 4096, 0, 0))
        self.assertEqual((two.name, two.registers, two.shared, two.frame, two.spilled), ("_Z3twoP", 255, 120000, 48, 20))

    def test_what_passed_is_compiled_again_once_its_text_changes(self):
        with tempfile.TemporaryDirectory() as directory:
            nvcc, source = (pathlib.Path(directory) / name for name in ("nvcc", "a.cu"))
            one = PTXAS[:PTXAS.index("ptxas info    : Compiling entry function '_Z3two")]
            # The preprocessor's output names the place; ptxas finds what the source says.
            nvcc.write_text(f"#!/bin/sh\ncase $* in *-E*) echo '# 1 \"{directory}/a.cu\"'; cat {source};; *) cat {source} >&2;; esac\n")
            nvcc.chmod(0o755)
            source.write_text(one)
            kernels, problems, compiled, text = check_ptxas.check(str(nvcc), source, "90a", "13.0", None, set())
            self.assertEqual((len(kernels), problems, compiled), (1, [], True))
            self.assertEqual(check_ptxas.check(str(nvcc), source, "90a", "13.0", None, {text})[1:], ([], False, text))
            for changed in (("80", "13.0"), ("90a", "13.1")):
                self.assertTrue(check_ptxas.check(str(nvcc), source, *changed, None, {text})[2])
            source.write_text(PTXAS)
            _, problems, compiled, _ = check_ptxas.check(str(nvcc), source, "90a", "13.0", None, {text})
            self.assertEqual((len(problems), compiled), (2, True))

    def test_spills_local_memory_and_shared_memory_are_problems(self):
        one, two = check_ptxas.parse(PTXAS)
        self.assertEqual(one.problems("120"), [])
        self.assertEqual(len(two.problems("90a")), 2)  # 227 KiB are enough
        self.assertEqual(len(two.problems("120")), 3)


if __name__ == "__main__":
    unittest.main()
