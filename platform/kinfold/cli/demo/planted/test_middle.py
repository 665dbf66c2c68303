"""Tests of `middle`; run with `python3 -m unittest`."""

import unittest

from middle import median


class MedianTest(unittest.TestCase):
    def test_an_odd_count_has_a_middle(self) -> None:
        self.assertEqual(median([9, 1, 5]), 5)

    def test_an_even_count_takes_the_mean_of_two(self) -> None:
        self.assertEqual(median([1, 2, 3, 10]), 2.5)


if __name__ == "__main__":
    unittest.main()
