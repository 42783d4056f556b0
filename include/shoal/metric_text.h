/* Metrics as OpenMetrics 1.0 has them: each family with its type and what it says, then its samples. What a node says of
 * itself comes from several rooms, so the form is here. A counter's name ends in _total, as its samples do. */
#ifndef SHOAL_METRIC_TEXT_H
#define SHOAL_METRIC_TEXT_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shoal/buf.h"

/* A histogram's upper bounds in nanoseconds; values beyond the last fall into +Inf. */
#define SHOAL_HISTOGRAM_BUCKETS 9
static const uint64_t shoal_histogram_bounds_ns[SHOAL_HISTOGRAM_BUCKETS] = { 100000,     1000000,    5000000,
                                                                             20000000,   50000000,   200000000,
                                                                             1000000000, 5000000000, 30000000000 };
struct shoal_histogram {
    uint64_t counts[SHOAL_HISTOGRAM_BUCKETS + 1];
    uint64_t sum_ns;
};

static inline void shoal_histogram_add(struct shoal_histogram *histogram, uint64_t value_ns)
{
    unsigned i = 0;

    while (i < SHOAL_HISTOGRAM_BUCKETS && value_ns > shoal_histogram_bounds_ns[i])
        i++;
    histogram->counts[i]++;
    histogram->sum_ns += value_ns;
}

__attribute__((format(printf, 2, 3))) static inline SHOAL_MUST_CHECK enum shoal_err
shoal_metric_put(struct shoal_buf *text, const char *format, ...)
{
    char line[512];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    SHOAL_ASSERT(len >= 0 && (size_t)len < sizeof(line)); /* names and labels of ours are bounded */
    return shoal_buf_append(text, line, (size_t)len);
}

/* `help` is ours: one line, no backslash. */
static inline SHOAL_MUST_CHECK enum shoal_err shoal_metric_family(struct shoal_buf *text, const char *name,
                                                                  const char *type, const char *help)
{
    size_t len = strlen(name);
    bool counter = len > 6 && strcmp(name + len - 6, "_total") == 0;
    int shown = (int)(counter ? len - 6 : len);

    return shoal_metric_put(text, "# TYPE %.*s %s\n# HELP %.*s %s\n", shown, name, counter ? "counter" : type, shown,
                            name, help);
}

/* A family of one sample: a counter if its name ends so, else a gauge. */
static inline SHOAL_MUST_CHECK enum shoal_err shoal_metric_value(struct shoal_buf *text, const char *name,
                                                                 const char *help, uint64_t value)
{
    enum shoal_err err = shoal_metric_family(text, name, "gauge", help);

    return err == SHOAL_OK ? shoal_metric_put(text, "%s %" PRIu64 "\n", name, value) : err;
}

/* A gauge of one time: scrapers want seconds. */
static inline SHOAL_MUST_CHECK enum shoal_err shoal_metric_seconds(struct shoal_buf *text, const char *name,
                                                                   const char *help, uint64_t value_ns)
{
    enum shoal_err err = shoal_metric_family(text, name, "gauge", help);

    return err == SHOAL_OK ? shoal_metric_put(text, "%s %.9f\n", name, (double)value_ns / 1e9) : err;
}

/* The samples of one histogram of a family. `label`: `service="echo"`, or "" of a family that has one. */
static inline SHOAL_MUST_CHECK enum shoal_err shoal_metric_buckets(struct shoal_buf *text, const char *name,
                                                                   const char *label,
                                                                   const struct shoal_histogram *histogram)
{
    const char *comma = label[0] == '\0' ? "" : ",", *open = label[0] == '\0' ? "" : "{";
    const char *close = label[0] == '\0' ? "" : "}";
    enum shoal_err err = SHOAL_OK;
    uint64_t count = 0;

    for (unsigned i = 0; i < SHOAL_HISTOGRAM_BUCKETS && err == SHOAL_OK; i++) {
        count += histogram->counts[i];
        err = shoal_metric_put(text, "%s_bucket{%s%sle=\"%g\"} %" PRIu64 "\n", name, label, comma,
                               (double)shoal_histogram_bounds_ns[i] / 1e9, count);
    }
    count += histogram->counts[SHOAL_HISTOGRAM_BUCKETS];
    if (err == SHOAL_OK)
        err = shoal_metric_put(text, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, label, comma, count);
    if (err == SHOAL_OK)
        err = shoal_metric_put(text, "%s_sum%s%s%s %.9g\n%s_count%s%s%s %" PRIu64 "\n", name, open, label, close,
                               (double)histogram->sum_ns / 1e9, name, open, label, close, count);
    return err;
}

static inline SHOAL_MUST_CHECK enum shoal_err shoal_metric_histogram(struct shoal_buf *text, const char *name,
                                                                     const char *help,
                                                                     const struct shoal_histogram *histogram)
{
    enum shoal_err err = shoal_metric_family(text, name, "histogram", help);

    return err == SHOAL_OK ? shoal_metric_buckets(text, name, "", histogram) : err;
}

#endif
