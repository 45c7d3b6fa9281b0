// SPDX-License-Identifier: MIT
/*
 * policy.c: the spec's wishes in an agreement part, and class weights by label: a key of
 * class_weight is the label as people write it (12, cat, true).
 */
#include "internal.h"

#include <endian.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool label_is(uint32_t kind, const struct agree_label *label, const char *key)
{
	char *end;
	int64_t v;

	switch (kind) {
	case AGREE_INT:
		if (label->bytes != sizeof(v))
			return false;
		memcpy(&v, label->value, sizeof(v));
		v = (int64_t)le64toh((uint64_t)v);
		errno = 0;
		return strtoll(key, &end, 10) == v && !*end && end != key && !errno;
	case AGREE_TEXT:
		return strlen(key) == label->bytes && !memcmp(key, label->value, label->bytes);
	case AGREE_BOOL:
		if (label->bytes != 1)
			return false;
		if (label->value[0])
			return !strcasecmp(key, "true") || !strcasecmp(key, "t");
		return !strcasecmp(key, "false") || !strcasecmp(key, "f");
	default:
		return false;
	}
}

static bool has_classes(uint32_t kind)
{
	return kind == AGREE_INT || kind == AGREE_TEXT || kind == AGREE_BOOL;
}

int train_config_policy(const struct train_config *config, struct agree_block *part,
			struct err *err)
{
	const char *key;
	json_t *map = NULL, *value;

	part->normalize = config->normalize;
	part->normalizing_const = config->normalizing_const;
	part->balanced = config->balanced;
	part->batch_size = config->batch_size;
	part->replicas = config->replicas ? config->replicas : 1;
	if (config->class_weight) {
		map = json_loads(config->class_weight, 0, NULL);
		if (!map)
			return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	}
	if ((config->balanced || map) && part->labels != AGREE_NO_LABELS &&
	    !has_classes(part->labels)) {
		json_decref(map);
		err_set(err, ERR_PARAM, -EINVAL,
			"class_weight needs one label a row, the dependent column holds %s",
			part->labels == AGREE_VECTOR ? "arrays" : "numbers to predict");
		err_hint(err, "Give each row its weight in a column of its own instead.");
		return -EINVAL;
	}
	for (uint32_t i = 0; i < part->n_labels; i++) {
		part->label[i].weight = NAN;
		json_object_foreach(map, key, value)
		{
			if (label_is(part->labels, &part->label[i], key))
				part->label[i].weight = json_number_value(value);
		}
	}
	json_decref(map);
	return 0;
}

static int check_zero(const struct agree_block *agreed, struct err *err)
{
	for (uint32_t i = 0; i < agreed->n_labels; i++)
		if (!agreed->label[i].count || agreed->label[i].weight != 0)
			return 0;
	return agreed->n_labels ? err_set(err, ERR_PARAM, -EINVAL,
					  "class_weight gives every class weight 0: nothing would "
					  "be learned")
				: 0;
}

int train_policy_check(const struct train_config *config, const struct agree_block *agreed,
		       struct err *err)
{
	const char *key;
	json_t *map, *value;
	int rc = 0;

	if (!config->class_weight || !has_classes(agreed->labels))
		return 0;
	map = json_loads(config->class_weight, 0, NULL);
	if (!map)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	json_object_foreach(map, key, value)
	{
		bool found = false;

		for (uint32_t i = 0; i < agreed->n_labels && !found; i++)
			found = label_is(agreed->labels, &agreed->label[i], key);
		if (!found) {
			rc = err_set(err, ERR_PARAM, -EINVAL,
				     "class_weight names '%.80s', which is no label of the %u in "
				     "the dependent column",
				     key, agreed->n_labels);
			break;
		}
	}
	json_decref(map);
	return rc ? rc : check_zero(agreed, err);
}
