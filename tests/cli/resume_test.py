#!/usr/bin/env python3
"""Interruption: a run that was killed, or stopped with Ctrl-C, and started again gives the bytes of an uninterrupted one."""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

from programs import FAST, STORIES, ProgramTest, command, copy_checkpoint, edit_tensors, listing, run

MOMENTS = 6


def lose_pages(path):
    """Zeros in place of every page that holds numbers alone, as a disk may leave them."""
    data = path.read_bytes()
    pages = [page for page in range(0, len(data) - 4096, 4096) if data[page:page + 4096].count(0) < 400]
    assert pages, path
    with path.open("r+b") as stream:
        for page in pages:
            stream.seek(page)
            stream.write(bytes(4096))


class Resume(ProgramTest):
    def setUp(self):
        super().setUp()
        self.out = self.directory / "out"
        self.arguments = (STORIES, "--out", self.out, *FAST, "--quiet")
        started = time.monotonic()
        self.run_ok("kvconvert", *self.arguments)
        self.seconds = time.monotonic() - started
        self.uninterrupted = listing(self.out)
        self.assertIn("model.safetensors", self.uninterrupted)
        self.clear()

    def clear(self):
        for path in self.directory.iterdir():
            shutil.rmtree(path)

    def stop(self, after, with_signal):
        process = subprocess.Popen(command("kvconvert", *self.arguments), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(after)
        process.send_signal(with_signal)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def assert_completes(self, message):
        extra = ("--force",) if self.out.exists() else ()  # stopped after the last step: do it all again
        self.run_ok("kvconvert", *self.arguments, *extra)
        self.assertEqual(listing(self.out), self.uninterrupted, message)
        self.assertEqual([path.name for path in self.directory.iterdir()], ["out"], message)

    def test_two_runs_give_equal_bytes(self):
        self.run_ok("kvconvert", *self.arguments)
        self.assertEqual(listing(self.out), self.uninterrupted)

    def test_killed_at_any_moment(self):
        generator = random.Random(20240607)
        for moment in range(MOMENTS):
            after = self.seconds * (moment + generator.random()) / MOMENTS
            with self.subTest(after=after):
                self.stop(after, signal.SIGKILL)
                if self.out.exists():
                    self.assertEqual(listing(self.out), self.uninterrupted, "an incomplete output under its final name")
                self.assert_completes(f"killed after {after:.2f} s of {self.seconds:.2f} s")
                self.clear()

    def test_killed_again_and_again(self):
        for moment in range(MOMENTS):
            self.stop(self.seconds * (moment + 1) / (MOMENTS + 1), signal.SIGKILL)
        self.assert_completes("killed repeatedly")

    def stop_behind(self, artifact):
        process = subprocess.Popen(command("kvconvert", *self.arguments), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not (self.directory / ".out.work" / artifact).exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)  # later stages were still to come
        self.assertIn("interrupted", errors)

    def test_interrupt_exits_with_130_and_can_be_resumed(self):
        for artifact in ("tokens.h5", "calibration.h5"):
            self.stop_behind(artifact)
            self.assertFalse(self.out.exists())
            self.assert_completes(f"interrupted after {artifact}")
            self.clear()

    def test_an_interrupt_ends_an_export(self):
        """The export writes many tensors beside the text model, which takes most of the time."""
        checkpoint = copy_checkpoint(STORIES, self.directory / "large")
        edit_tensors(checkpoint, lambda tensors: tensors.update(
            {f"vision_tower.{index}": ["U8", [1 << 22], bytes(1 << 22)] for index in range(64)}))
        out, written = self.directory / "out", self.directory / ".out.partial" / "model.safetensors"
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(command("kvconvert", checkpoint, "--out", out, *FAST, "--quiet"), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while process.poll() is None and not written.exists():
                time.sleep(0.001)
            self.assertIsNone(process.poll(), "written before the signal")
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)
            self.assertFalse(written.parent.exists())
            self.assertFalse(out.exists())
            self.assertTrue((self.directory / ".out.work" / "fisher.h5").exists())

    def test_an_error_costs_no_stage_of_an_earlier_run(self):
        work, most = self.directory / ".out.work", 1 << 20  # bytes of a file: less than Fisher information needs
        def fail_for_space():
            process = subprocess.run(command("kvconvert", *self.arguments), capture_output=True, text=True, timeout=240,
                                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
            self.assertEqual(process.returncode, 1, process.stderr)
            self.assertIn("fisher.h5.partial: cannot reserve", process.stderr)

        fail_for_space()
        self.assertEqual(listing(self.directory), {})  # a run of seconds
        self.stop_behind("calibration.h5")
        stages = listing(work)
        fail_for_space()
        self.assertEqual(listing(work), stages)
        self.assertIn("no such file", run("kvconvert", *self.arguments, "--calibration", self.directory / "none.txt").stderr)
        self.assertEqual(listing(work), stages)
        self.assert_completes("after errors")

    def test_a_damaged_conversion_is_made_again(self):
        work = self.directory / "work"
        self.run_ok("kvconvert", *self.arguments, "--work", work)
        for name, size in (("conversion.safetensors", 1000), ("conversion.safetensors", 0), ("conversion.h5", 1000),
                           ("conversion.safetensors", None)):
            with self.subTest(name, size=size):
                path = work / "conversion" / name
                if size is None:
                    lose_pages(path)
                else:
                    os.truncate(path, size)
                heard = [argument for argument in self.arguments if argument != "--quiet"]
                messages = self.run_ok("kvconvert", *heard, "--work", work, "--force").stderr
                self.assertRegex(messages, r"conversion: .*conversion\.h5 .* or is damaged, and is made again")
                self.assertEqual(listing(self.out), self.uninterrupted)

    def test_damaged_statistics_are_refused(self):
        self.stop_behind("calibration.h5")
        calibration = self.directory / ".out.work" / "calibration.h5"
        lose_pages(calibration)
        refused = run("kvconvert", *self.arguments)
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertRegex(refused.stderr, "calibration.h5:/.*damaged: delete it")
        calibration.unlink()
        self.assert_completes("without its statistics")


if __name__ == "__main__":
    unittest.main()
