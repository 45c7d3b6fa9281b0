// SPDX-License-Identifier: MIT
/*
 * ar_gloo.cc: Gloo's all-reduce for bench-merge: ar_gloo RANK N STORE INTERFACE ALGORITHM
 * BYTES:ITERATIONS... prints, for each size, the seconds of one operation on this rank, and the
 * number of wrong values. ALGORITHM: ring, bcube (of today's interface), ring_chunked,
 * halving_doubling.
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <string>
#include <vector>

static float value(int rank, size_t i)
{
	return (float)((i * 7 + rank * 13) % 61 + 1);
}

static void add(void *c, const void *a, const void *b, size_t n)
{
	gloo::sum<float>(c, a, b, n);
}

class Operation
{
      public:
	Operation(std::shared_ptr<gloo::Context> context, const std::string &name, float *x,
		  size_t count)
	    : context(context), options(context), x(x), count(count)
	{
		std::vector<float *> ptrs{x};

		if (name == "ring_chunked")
			fixed.reset(
				new gloo::AllreduceRingChunked<float>(context, ptrs, (int)count));
		else if (name == "halving_doubling")
			fixed.reset(new gloo::AllreduceHalvingDoubling<float>(context, ptrs,
									      (int)count));
		else if (name == "ring" || name == "bcube")
			options.setAlgorithm(name == "ring"
						     ? gloo::AllreduceOptions::Algorithm::RING
						     : gloo::AllreduceOptions::Algorithm::BCUBE);
		else
			throw std::runtime_error("no algorithm " + name);
		options.setOutput(x, count);
		options.setReduceFunction(add);
	}
	void run()
	{
		if (fixed)
			fixed->run();
		else
			gloo::allreduce(options);
	}

      private:
	std::shared_ptr<gloo::Context> context;
	gloo::AllreduceOptions options;
	std::unique_ptr<gloo::Algorithm> fixed;
	float *x;
	size_t count;
};

static double now()
{
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
		.count();
}

static void measure(std::shared_ptr<gloo::Context> context, const std::string &name, size_t bytes,
		    long iters)
{
	size_t count = bytes / sizeof(float);
	std::vector<float> x(count);
	Operation operation(context, name, x.data(), count);
	gloo::BarrierOptions barrier(context);
	long wrong = 0;
	double begin;

	for (size_t i = 0; i < count; i++)
		x[i] = value(context->rank, i);
	operation.run();
	for (size_t i = 0; i < count; i++) {
		float want = 0;

		for (int r = 0; r < context->size; r++)
			want += value(r, i);
		wrong += x[i] != want;
		x[i] = 0;
	}
	for (int i = 0; i < 2; i++)
		operation.run();
	gloo::barrier(barrier);
	begin = now();
	for (long i = 0; i < iters; i++)
		operation.run();
	printf("%zu %.9f %ld\n", bytes, (now() - begin) / (double)iters, wrong);
	fflush(stdout);
	gloo::barrier(barrier);
}

int main(int argc, char **argv)
{
	if (argc < 7)
		return 2;
	try {
		gloo::transport::tcp::attr attr;
		gloo::rendezvous::FileStore store(argv[3]);
		auto context =
			std::make_shared<gloo::rendezvous::Context>(atoi(argv[1]), atoi(argv[2]));

		attr.iface = argv[4];
		auto device = gloo::transport::tcp::CreateDevice(attr);

		context->connectFullMesh(store, device);
		for (int a = 6; a < argc; a++) {
			char *end;
			size_t bytes = strtoul(argv[a], &end, 10);

			measure(context, argv[5], bytes, *end ? strtol(end + 1, nullptr, 10) : 1);
		}
	} catch (const std::exception &e) {
		fprintf(stderr, "ar_gloo: %s\n", e.what());
		return 1;
	}
	return 0;
}
