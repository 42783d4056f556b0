/* See shoal/autoscale.h. */
#include "shoal/autoscale.h"

#include "shoal/error.h"

#include "shoal/banned.h"

static uint32_t bounded(const struct shoal_autoscale_facts *facts, uint32_t count)
{
    if (count < facts->min)
        return facts->min;
    return count > facts->max ? facts->max : count;
}

static uint32_t wanted(const struct shoal_autoscale_facts *facts, uint32_t load)
{
    return bounded(facts, load / facts->batch + (load % facts->batch != 0));
}

static uint32_t grown(const struct shoal_autoscale_facts *facts, uint32_t want)
{
    uint32_t step = want - facts->have;

    SHOAL_ASSERT(want > facts->have && facts->have > 0); /* A1 has the first one */
    return facts->have + (step > facts->have ? facts->have : step);
}

/* A3. `want` are enough now. */
static uint32_t shrunk(struct shoal_autoscale *state, const struct shoal_autoscale_facts *facts, uint32_t want)
{
    SHOAL_ASSERT(want < facts->have);
    if (state->surplus_ns == 0) {
        state->surplus_ns = facts->now_ns;
        state->peak = want;
    }
    if (want > state->peak)
        state->peak = want;
    if (facts->now_ns < state->surplus_ns + facts->release_ns)
        return facts->have;
    state->surplus_ns = 0;
    return state->peak;
}

/* A4. */
static bool bursts(struct shoal_autoscale *state, const struct shoal_autoscale_facts *facts)
{
    SHOAL_ASSERT(facts->batch > 0);
    if (facts->have == 0 || facts->ready < facts->have || facts->load / facts->batch < 2 * (uint64_t)facts->have) {
        state->burst_ns = 0;
        return false;
    }
    if (state->burst_ns == 0)
        state->burst_ns = facts->now_ns;
    if (facts->now_ns < state->burst_ns + SHOAL_AUTOSCALE_BURST_NS)
        return false;
    state->burst_ns = facts->now_ns;
    return true;
}

uint32_t shoal_autoscale(struct shoal_autoscale *state, const struct shoal_autoscale_facts *facts)
{
    uint32_t lasting, want;

    SHOAL_ASSERT(facts->now_ns > 0 && facts->batch > 0);
    SHOAL_ASSERT(facts->min <= facts->max);
    if (facts->have == 0 && facts->load > 0 && facts->max > 0)
        return bounded(facts, 1); /* A1 */
    if (bounded(facts, facts->have) != facts->have)
        return bounded(facts, facts->have);
    if (bursts(state, facts) && wanted(facts, facts->load) > facts->have) {
        state->surplus_ns = 0;
        return grown(facts, wanted(facts, facts->load));
    }
    if (state->looked_ns != 0 && facts->now_ns < state->looked_ns + facts->interval_ns)
        return facts->have;
    lasting = facts->ready == 0 || facts->load < state->load ? facts->load : state->load; /* A2 */
    state->looked_ns = facts->now_ns;
    state->load = facts->load;
    want = wanted(facts, facts->load);
    if (want < facts->have)
        return shrunk(state, facts, want);
    state->surplus_ns = 0;
    want = wanted(facts, lasting);
    return want > facts->have ? grown(facts, want) : facts->have;
}
