"""Long measurements of promises that `make test` cannot check in its time; one module each, named as on the command
line: `make measure ARGS="frozen_leader --rounds 100 --seed 7"`."""
