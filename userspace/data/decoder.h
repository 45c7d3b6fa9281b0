/* SPDX-License-Identifier: MIT */
/*
 * decoder.h: the pool of decode workers seen by a feeder. Images go out without waiting and come
 * back in any order; a feeder keeps as many on their way as there are slots. Several feeders share
 * the pool; a feeder that does not come to fetch its images holds nobody up (they are moved out of
 * the slots). An image that ends its worker or takes too long is given back as a crash, the worker
 * is started anew.
 */
#ifndef DATA_DECODER_H
#define DATA_DECODER_H

#include <stdbool.h>
#include <stdint.h>

#include "data.h"
#include "image.h"

#define DECODER_SMALL ((uint64_t)1 << 20) /* larger images take a large slot at once */

/* tests only: images that attack (worker.h) */
int decoder_create(const struct data_limits *limits, bool test_images, struct data_decoder **out,
		   struct err *err);
uint64_t decoder_max_bytes(const struct data_decoder *decoder);
bool decoder_test_images(const struct data_decoder *decoder);

/* malloc'd by its owner, as the first member or alone; the decoder frees it when its queue closes.
 */
struct decode_job {
	struct decode_queue *queue;
	struct decode_job *next;
	uint32_t worker, slot;
	uint32_t state;
	uint64_t bytes; /* of the image */
	uint8_t *moved; /* out of its slot: pixels, or the image when it was too large */
	struct image_request request;
	struct image_result result; /* once taken; checked: h, w, c fit what was asked */
	bool crash;		    /* ended or hung its worker */
};

struct decode_queue {			  /* one per feeder and thread; zero it to begin */
	struct decode_job *first, **last; /* done, not yet taken */
	uint32_t in_flight;		  /* submitted, not yet taken */
	uint32_t seen;			  /* bell when the workers were last looked at */
	uint64_t idle_since;		  /* ms, 0: not waiting */
};

/*
 * All of these: 0 or -errno with err. submit copies the image; the job belongs to the decoder until
 * it is taken. Fields to set before: request, bytes. -EAGAIN (err not set): no free slot: take what
 * is done, or wait. Images too large for a small slot go to one of the few large ones.
 */
int decoder_submit(struct data_decoder *decoder, struct decode_queue *queue, struct decode_job *job,
		   const void *image, struct err *err);
/* A finished job; NULL: none. Its pixels can be read until it is released. */
struct decode_job *decoder_take(struct data_decoder *decoder, struct decode_queue *queue);
/* Result IMAGE_TOO_LARGE: once more, in a large slot. -EAGAIN as above; the job stays the taker's.
 */
int decoder_again(struct data_decoder *decoder, struct decode_queue *queue, struct decode_job *job,
		  struct err *err);
/* h * w * c bytes of pixels */
int decoder_pixels(struct data_decoder *decoder, const struct decode_job *job, void *to,
		   struct err *err);
void decoder_release(struct data_decoder *decoder, struct decode_job *job); /* then free it */
enum decode_wait {
	DECODE_DONE,	   /* one of the queue's jobs is done */
	DECODE_SLOT,	   /* the same, or a slot is free */
	DECODE_SLOT_LARGE, /* the same, for an image of more than DECODER_SMALL bytes */
	DECODE_LARGE	   /* a large slot is free */
};
/* Returns when that may be so, or after a moment. */
int decoder_wait(struct data_decoder *decoder, struct decode_queue *queue, enum decode_wait what,
		 struct err *err);
/* Drops what is under way. */
void decoder_close(struct data_decoder *decoder, struct decode_queue *queue);

#endif
