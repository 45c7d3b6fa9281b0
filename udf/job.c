// SPDX-License-Identifier: MIT
/*
 * job.c: a job's id and its secret. Both come from the coordinator's strong random numbers and
 * travel as one query parameter 'id:secret' in hex, never in query text.
 */
#include "gpu_cnn.h"

void job_new(struct job *job)
{
	if (!compat_random(job->id, sizeof(job->id)) ||
	    !compat_random(job->secret, sizeof(job->secret)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
				errmsg("could not generate random numbers for a job")));
}

static void put_hex(char *out, const uint8 *bytes, size_t n)
{
	static const char digit[] = "0123456789abcdef";
	size_t i;

	for (i = 0; i < n; i++) {
		out[2 * i] = digit[bytes[i] >> 4];
		out[2 * i + 1] = digit[bytes[i] & 15];
	}
}

char *job_hex(const uint8 *bytes, size_t n)
{
	char *out = palloc(2 * n + 1);

	put_hex(out, bytes, n);
	out[2 * n] = '\0';
	return out;
}

void job_token(const struct job *job, char out[JOB_TOKEN + 1])
{
	put_hex(out, job->id, CTL_ID);
	out[2 * CTL_ID] = ':';
	put_hex(out + 2 * CTL_ID + 1, job->secret, CTL_ID);
	out[JOB_TOKEN] = '\0';
}

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static bool get_hex(const char *in, uint8 *out, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++) {
		int high = nibble(in[2 * i]), low = nibble(in[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		out[i] = (uint8)(high << 4 | low);
	}
	return true;
}

void job_parse(text *token, struct job *job)
{
	const char *p = VARDATA_ANY(token);

	if (VARSIZE_ANY_EXHDR(token) != JOB_TOKEN || p[2 * CTL_ID] != ':' ||
	    !get_hex(p, job->id, CTL_ID) || !get_hex(p + 2 * CTL_ID + 1, job->secret, CTL_ID))
		ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("malformed job token"),
			 errhint("This function is called by gpu_cnn_train and its like.")));
}

void job_parse_id(text *id, uint8 out[CTL_ID])
{
	if (VARSIZE_ANY_EXHDR(id) != 2 * CTL_ID || !get_hex(VARDATA_ANY(id), out, CTL_ID))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("a job's id is %d hexadecimal digits", 2 * CTL_ID),
				errhint("gpu_cnn_progress() lists the running jobs.")));
}
