#!/usr/bin/env python3
"""Which open tiles of vLLM's sequences are kept where."""

import unittest

import source_tree  # noqa: F401 (first: it names this tree's package)

from kvconvert.vllm.open_tiles import OpenTiles


class Places(unittest.TestCase):
    def test_a_tile_keeps_its_place(self):
        tiles = OpenTiles(24)
        tiles.begin_step()
        first = tiles.place(7, True)
        self.assertEqual(first, (0, False))  # its first token comes: there is nothing to refill
        self.assertEqual(tiles.place(9, False), (1, True))
        tiles.begin_step()
        self.assertEqual(tiles.place(7, False), first)

    def test_there_are_no_more_places_than_a_step_needs(self):
        tiles = OpenTiles(24)
        for step in range(300):
            tiles.begin_step()
            numbers = [tiles.place(24 * step + i, True).number for i in range(24)]
            self.assertEqual(len(set(numbers)), 24)
            self.assertLess(max(numbers), tiles.capacity)
        self.assertEqual(tiles.capacity, 24)

    def test_rows_of_a_tile_that_was_written_without_them_are_void(self):
        tiles = OpenTiles(24)
        tiles.begin_step()
        first = tiles.place(7, True)
        tiles.forget(7)
        tiles.forget(8)  # unknown
        self.assertEqual(tiles.place(7, False), (first.number, True))
        self.assertEqual(tiles.place(7, False), (first.number, False))  # they were read from codes
        self.assertEqual(tiles.place(8, False), (1, True))
        tiles.forget(7)
        self.assertEqual(tiles.place(7, True), (first.number, False))
        self.assertEqual(tiles.place(7, False), (first.number, False))

    def test_a_step_of_more_tiles_gets_them(self):
        tiles = OpenTiles(20)
        tiles.begin_step()
        numbers = [tiles.place(i, True).number for i in range(50)]
        self.assertEqual(numbers, list(range(50)))
        self.assertGreaterEqual(tiles.capacity, 50)


if __name__ == "__main__":
    unittest.main()
