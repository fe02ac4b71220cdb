#!/usr/bin/env python3
"""Interruption: a run that was killed, or stopped with Ctrl-C, and started again gives the bytes of an uninterrupted one."""

import random
import shutil
import signal
import subprocess
import time
import unittest

from programs import FAST, STORIES, ProgramTest, command, listing

MOMENTS = 6


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

    def test_interrupt_exits_with_130_and_can_be_resumed(self):
        for artifact in ("tokens.h5", "calibration.h5"):
            process = subprocess.Popen(command("kvconvert", *self.arguments), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while process.poll() is None and not (self.directory / ".out.work" / artifact).exists():
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)  # later stages were still to come
            self.assertIn("interrupted", errors)
            self.assertFalse(self.out.exists())
            self.assert_completes(f"interrupted after {artifact}")
            self.clear()


if __name__ == "__main__":
    unittest.main()
