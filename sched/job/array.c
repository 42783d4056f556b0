/* The text of an array job, read: ranges of indices, and how many tasks may run at one time. See shoal/array.h. */
#include "shoal/array.h"

#include "shoal/banned.h"

#define FORM "write ranges such as 0-9, 1-100:7 or 3,5,9-12, and %%8 behind them for at most 8 at one time"

struct array_reader {
    const char *at;
    struct shoal_msg *msg;
};

static enum shoal_err read_number(struct array_reader *r, uint32_t *number)
{
    uint64_t value = 0;
    const char *from = r->at;

    for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
        value = value * 10 + (uint64_t)(*r->at - '0');
        if (value > SHOAL_ARRAY_INDEX_MAX)
            return shoal_fail(r->msg, SHOAL_ERR_INVALID, "array: %.12s... is too large; an index is at most %u", from,
                              SHOAL_ARRAY_INDEX_MAX);
    }
    if (r->at == from)
        return shoal_fail(r->msg, SHOAL_ERR_INVALID, "array: a number is missing before \"%.20s\"; " FORM, from);
    *number = (uint32_t)value;
    return SHOAL_OK;
}

static bool take(struct array_reader *r, char c)
{
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

static uint32_t last_of(const struct shoal_array_range *range)
{
    SHOAL_ASSERT(range->count > 0 && range->step > 0);
    return range->first + (range->count - 1) * range->step;
}

static bool in_range(const struct shoal_array_range *range, uint32_t index)
{
    SHOAL_ASSERT(range->step > 0);
    return index >= range->first && index <= last_of(range) && (index - range->first) % range->step == 0;
}

/* True when both hold one index. The members of the one with the larger step repeat modulo the smaller step. */
static bool ranges_meet(const struct shoal_array_range *a, const struct shoal_array_range *b, uint32_t *index)
{
    const struct shoal_array_range *wide = a->step >= b->step ? a : b;
    const struct shoal_array_range *fine = wide == a ? b : a;

    SHOAL_ASSERT(a->step > 0 && b->step > 0);
    for (uint32_t i = 0, tried = 0; i < wide->count && tried < fine->step; i++) {
        *index = wide->first + i * wide->step;
        if (in_range(fine, *index))
            return true;
        if (*index > last_of(fine))
            return false;
        tried += *index >= fine->first;
    }
    return false;
}

static enum shoal_err add_range(struct array_reader *r, struct shoal_array *array, struct shoal_array_range range)
{
    uint32_t index;

    SHOAL_ASSERT(array->range_count <= SHOAL_ARRAY_RANGES_MAX);
    SHOAL_ASSERT(range.count > 0 && range.step > 0);
    if (array->range_count == SHOAL_ARRAY_RANGES_MAX)
        return shoal_fail(r->msg, SHOAL_ERR_INVALID, "array: more than %d ranges; use fewer, or several jobs",
                          SHOAL_ARRAY_RANGES_MAX);
    if (range.count > SHOAL_ARRAY_TASKS_MAX - array->task_count)
        return shoal_fail(r->msg, SHOAL_ERR_INVALID,
                          "array: %u tasks are too many: a job has at most %d; use several jobs, or a step",
                          array->task_count + range.count, SHOAL_ARRAY_TASKS_MAX);
    for (uint32_t i = 0; i < array->range_count; i++)
        if (ranges_meet(&array->ranges[i], &range, &index))
            return shoal_fail(r->msg, SHOAL_ERR_INVALID,
                              "array: index %u is named twice; each task runs once, so name it in one range", index);
    if (array->range_count == 0 || range.first < array->index_min)
        array->index_min = range.first;
    if (array->range_count == 0 || last_of(&range) > array->index_max)
        array->index_max = last_of(&range);
    array->ranges[array->range_count++] = range;
    array->task_count += range.count;
    SHOAL_ASSERT(array->task_count <= SHOAL_ARRAY_TASKS_MAX);
    return SHOAL_OK;
}

static enum shoal_err read_range(struct array_reader *r, struct shoal_array *array)
{
    struct shoal_array_range range = { .step = 1, .count = 1 };
    uint32_t last;
    enum shoal_err err = read_number(r, &range.first);

    SHOAL_ASSERT(array->range_count <= SHOAL_ARRAY_RANGES_MAX);
    if (err != SHOAL_OK)
        return err;
    if (take(r, '-')) {
        err = read_number(r, &last);
        if (err == SHOAL_OK && take(r, ':'))
            err = read_number(r, &range.step);
        if (err != SHOAL_OK)
            return err;
        if (last < range.first)
            return shoal_fail(r->msg, SHOAL_ERR_INVALID, "array: %u-%u is reversed; write %u-%u", range.first, last,
                              last, range.first);
        if (range.step == 0)
            return shoal_fail(r->msg, SHOAL_ERR_INVALID, "array: a step of 0 makes no sense; at least 1");
        range.count = (last - range.first) / range.step + 1;
    }
    return add_range(r, array, range);
}

static enum shoal_err read_limit(struct array_reader *r, struct shoal_array *array)
{
    enum shoal_err err;

    SHOAL_ASSERT(array->at_once_max == 0); /* said once */
    if (!take(r, '%'))
        return SHOAL_OK;
    err = read_number(r, &array->at_once_max);
    if (err == SHOAL_OK && array->at_once_max == 0)
        return shoal_fail(r->msg, SHOAL_ERR_INVALID, "array: %%0 lets no task run; at least %%1");
    return err;
}

enum shoal_err shoal_array_parse(const char *text, struct shoal_array *array, struct shoal_msg *msg)
{
    struct array_reader r = { .at = text, .msg = msg };
    enum shoal_err err;

    SHOAL_ASSERT(array != NULL);
    memset(array, 0, sizeof(*array));
    if (text[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "array: it has no task; " FORM);
    if (strlen(text) >= SHOAL_ARRAY_TEXT_BYTES)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "array: the text is longer than %d bytes; use ranges with a step",
                          SHOAL_ARRAY_TEXT_BYTES - 1);
    do {
        err = read_range(&r, array);
        if (err != SHOAL_OK)
            return err;
    } while (take(&r, ','));
    err = read_limit(&r, array);
    if (err == SHOAL_OK && *r.at != '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "array: \"%.20s\" is not understood; " FORM, r.at);
    return err;
}

uint32_t shoal_array_index(const struct shoal_array *array, uint32_t position)
{
    SHOAL_ASSERT(position < array->task_count);
    SHOAL_ASSERT(array->range_count <= SHOAL_ARRAY_RANGES_MAX);
    for (uint32_t i = 0; i < array->range_count; i++) {
        if (position < array->ranges[i].count)
            return array->ranges[i].first + position * array->ranges[i].step;
        position -= array->ranges[i].count;
    }
    return SHOAL_ARRAY_NONE;
}

uint32_t shoal_array_position(const struct shoal_array *array, uint32_t index)
{
    uint32_t before = 0;

    SHOAL_ASSERT(array->range_count <= SHOAL_ARRAY_RANGES_MAX);
    for (uint32_t i = 0; i < array->range_count; i++) {
        const struct shoal_array_range *range = &array->ranges[i];

        if (in_range(range, index))
            return before + (index - range->first) / range->step;
        before += range->count;
    }
    return SHOAL_ARRAY_NONE;
}

const char *shoal_task_state_name(enum shoal_task_state state)
{
    SHOAL_ASSERT(state <= SHOAL_TASK_STATE_COUNT);
    switch (state) {
    case SHOAL_TASK_PENDING: return "PENDING";
    case SHOAL_TASK_RUNNING: return "RUNNING";
    case SHOAL_TASK_DONE: return "DONE";
    case SHOAL_TASK_FAILED: return "FAILED";
    case SHOAL_TASK_STOPPED: return "STOPPED";
    case SHOAL_TASK_STATE_COUNT: break;
    }
    return "UNKNOWN";
}
