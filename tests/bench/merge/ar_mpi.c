/* SPDX-License-Identifier: MIT */
/*
 * ar_mpi.c: MPI_Allreduce for bench-merge. ar_mpi BYTES:ITERATIONS... prints, for each size, the
 * mean over ranks of the seconds of one operation, and the number of wrong values.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float value(int rank, long i)
{
	return (float)((i * 7 + rank * 13) % 61 + 1);
}

static long check(float *x, long count, int rank, int n)
{
	long wrong = 0;

	for (long i = 0; i < count; i++)
		x[i] = value(rank, i);
	MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	for (long i = 0; i < count; i++) {
		float want = 0;

		for (int r = 0; r < n; r++)
			want += value(r, i);
		wrong += x[i] != want;
	}
	return wrong;
}

int main(int argc, char **argv)
{
	int rank, n;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &n);
	for (int a = 1; a < argc; a++) {
		char *end;
		long bytes = strtol(argv[a], &end, 10),
		     iters = *end ? strtol(end + 1, NULL, 10) : 1;
		long count = bytes / (long)sizeof(float), wrong, all;
		float *x = calloc((size_t)count + 1, sizeof(float));
		double seconds, sum;

		if (!x || count <= 0 || iters <= 0)
			MPI_Abort(MPI_COMM_WORLD, 2);
		wrong = check(x, count, rank, n);
		memset(x, 0, (size_t)bytes);
		for (int i = 0; i < 2; i++)
			MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM,
				      MPI_COMM_WORLD);
		MPI_Barrier(MPI_COMM_WORLD);
		seconds = MPI_Wtime();
		for (long i = 0; i < iters; i++)
			MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM,
				      MPI_COMM_WORLD);
		seconds = (MPI_Wtime() - seconds) / (double)iters;
		MPI_Reduce(&seconds, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
		MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
		if (!rank) {
			printf("%ld %.9f %ld\n", bytes, sum / n, all);
			fflush(stdout);
		}
		free(x);
	}
	MPI_Finalize();
	return 0;
}
