"""Long measurements, one module each: ``make measure ARGS="frozen_leader --rounds 100 --seed 7"``."""
