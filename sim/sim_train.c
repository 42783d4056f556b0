/* Training, as its members see it: enter with D, complete a step one after the other, apply it, report (PROTOCOLS 11,
 * 12).
 *
 * T1. The ranges of an epoch cover 0..V-1 once; epochs of a worker only rise.
 * T2. A member that is said to have the state has it; a decided step was completed by somebody; nobody is taken back
 *     except by a snapshot or a fresh start.
 * T3. A step is applied only after the one before it.
 * T4. What somebody has applied is not done again while one lives who has completed it. An epoch that others have left
 *     goes no further than what the newer one goes on from; (e,k) with k > 0 lies on one host. */
#include "sim.h"

#include "shoal/banned.h"

#define TICK_NS (4 * SHOAL_MS)
#define SNAPSHOT_STEPS 50
#define RECORDS_STEPS 5

/* A link that does not come up breaks sooner than one that falls silent; a standing process's kernel answers. */
static uint64_t link_limit_ns(const struct sim *sim, const struct sim_worker *worker)
{
    for (uint32_t i = 0; i < worker->last_epoch->member_count; i++) {
        uint32_t host = sim_host_find(sim, worker->last_epoch->members[i].node);

        if (shoal_ranks_has(&worker->silent, i) && !sim_can_train(sim, host, worker->host) &&
            worker->silent_ns <= worker->entered_ns + 2 * TICK_NS)
            return SHOAL_LINK_CONNECT_NS;
    }
    return SHOAL_BEAT_BROKEN_NS;
}

void sim_close(struct sim_host *host, struct sim_worker *worker)
{
    const struct sim *sim = host->sim;

    if (worker->closed || worker->epoch == 0)
        return;
    worker->closed = true;
    if (worker->entered && shoal_ranks_any(&worker->silent) &&
        sim->now_ns > worker->silent_ns + link_limit_ns(sim, worker) / 2)
        shoal_ranks_join(&worker->broken, &worker->silent);
    worker->entered = false;
    sim_work_later(host, worker, SIM_WORK_CLOSED, SHOAL_MS + shoal_rand_below(&host->chance, 5 * SHOAL_MS));
}

static const struct shoal_rank_member *check_record(struct sim_host *host, const struct sim_worker *worker,
                                                    const struct shoal_worker_epoch *epoch)
{
    const struct shoal_rank_member *me = NULL;
    const uint32_t all = sim_virtual_workers(&host->sim->jobs[worker->job]);
    uint32_t covered = 0;

    for (uint32_t i = 0; i < epoch->member_count; i++) {
        if (epoch->members[i].v_begin != covered || epoch->members[i].v_end < covered)
            sim_fail(host->sim, "epoch %u: ranges do not join at member %u", epoch->epoch.e, i);
        covered = epoch->members[i].v_end;
        if (epoch->members[i].worker_id == worker->id)
            me = &epoch->members[i];
    }
    for (uint32_t i = 1; epoch->epoch.k > 0 && i < epoch->member_count; i++)
        if (!shoal_node_id_equal(epoch->members[i].node, epoch->members[0].node))
            sim_fail(host->sim, "epoch (%u,%u) was made by one host, but has members on two", epoch->epoch.e,
                     epoch->epoch.k);
    if (covered != all)
        sim_fail(host->sim, "epoch %u covers %u of %u", epoch->epoch.e, covered, all);
    return me;
}

void sim_enter(struct sim_host *host, struct sim_worker *worker, const struct shoal_worker_epoch *epoch)
{
    struct sim *sim = host->sim;
    struct sim_job *job = &sim->jobs[worker->job];
    uint64_t word = shoal_epoch_word(epoch->epoch);
    const struct shoal_rank_member *me;
    bool snapshot = epoch->snapshot_path[0] != '\0';

    if (word <= worker->epoch)
        return;
    me = check_record(host, worker, epoch);
    if (me == NULL || worker->epoch != 0)
        sim_close(host, worker);
    if (me == NULL)
        return;
    if (me->has_state && !snapshot && epoch->decided_step > 0 && worker->applied + 1 < epoch->decided_step)
        sim_fail(sim, "epoch %u: worker %llx applied %llu, the epoch says that it has the state of %llu",
                 epoch->epoch.e, (unsigned long long)worker->id, (unsigned long long)worker->applied,
                 (unsigned long long)epoch->decided_step);
    if (worker->applied > epoch->decided_step && !snapshot)
        sim_fail(sim, "epoch %u decides step %llu, but worker %llx has applied %llu", epoch->epoch.e,
                 (unsigned long long)epoch->decided_step, (unsigned long long)worker->id,
                 (unsigned long long)worker->applied);
    if (word > job->newest_epoch && !snapshot && (epoch->holder != 0 || epoch->donor != 0) &&
        worker->complete > epoch->decided_step && job->steps_done > epoch->decided_step)
        sim_fail(sim, "epoch %u decides step %llu, but %llu was applied, and worker %llx has completed it",
                 epoch->epoch.e, (unsigned long long)epoch->decided_step, (unsigned long long)job->steps_done,
                 (unsigned long long)worker->id);
    worker->epoch = word;
    worker->closed = false;
    worker->entered = true;
    worker->silent = worker->unheard = (struct shoal_ranks){ 0 };
    worker->silent_ns = worker->entered_ns = sim->now_ns;
    worker->broken = (struct shoal_ranks){ 0 };
    shoal_worker_epoch_copy(worker->last_epoch, epoch);
    if (snapshot || (epoch->holder == 0 && epoch->donor == 0)) { /* a fresh start */
        worker->applied = worker->complete = epoch->decided_step;
        if (word > job->newest_epoch)
            job->steps_done = epoch->decided_step;
    }
    if (word > job->newest_epoch) {
        job->newest_epoch = word;
        job->newest_decided = epoch->decided_step;
        sim->shrinks += epoch->epoch.k > 0;
    }
    sim_trace(sim, "%s: worker %llx enters epoch (%u,%u) of %u members at step %llu", host->name,
              (unsigned long long)worker->id, epoch->epoch.e, epoch->epoch.k, epoch->member_count,
              (unsigned long long)epoch->decided_step);
    for (size_t i = 0; i < host->runner_count; i++)
        if (host->runners[i].used && host->runners[i].job == worker->job && host->runners[i].revoked >= word)
            sim_close(host, worker);
    if (!job->training) {
        job->training = true;
        sim_push(sim, SIM_TRAIN, host->index, TICK_NS)->word = worker->job;
    }
}

struct team {
    const struct shoal_worker_epoch *epoch;
    uint32_t count;
    struct sim_worker *members[SHOAL_RANKS_MAX];
    bool holder_here;
};

/* Members of other hosts that cannot be heard. `ended`: the kernel of one that ended has closed its
 * connections. */
static struct shoal_ranks silent(struct sim *sim, const struct sim_worker *worker, bool *ended)
{
    struct shoal_ranks ranks = { 0 };

    for (uint32_t i = 0; i < worker->last_epoch->member_count; i++) {
        const struct shoal_rank_member *place = &worker->last_epoch->members[i];
        const struct sim_worker *member = sim_worker_find(sim, place->worker_id);
        uint32_t host = sim_host_find(sim, place->node);

        if (host == worker->host)
            continue;
        if (member == NULL || sim_worker_stands(member) || !sim_can_train(sim, host, worker->host))
            shoal_ranks_add(&ranks, i);
        if (member == NULL && sim->hosts[host].powered && sim_can_train(sim, host, worker->host))
            *ended = true;
    }
    return ranks;
}

/* The beats between libraries, the waiting for a beat, and connections that break. */
static void watch_links(struct sim *sim, struct sim_worker *worker)
{
    bool ended = false;
    struct shoal_ranks ranks = silent(sim, worker, &ended);
    bool some = shoal_ranks_any(&ranks);
    uint64_t limit_ns;

    if (!shoal_ranks_equal(&ranks, &worker->silent)) {
        worker->silent = ranks;
        worker->silent_ns = sim->now_ns;
    }
    limit_ns = link_limit_ns(sim, worker);
    if (ended || (some && sim->now_ns - worker->silent_ns > limit_ns)) {
        shoal_ranks_join(&worker->broken, &ranks);
        sim_close(&sim->hosts[worker->host], worker);
    } else if (!shoal_ranks_equal(&ranks, &worker->unheard) &&
               (!some || sim->now_ns - worker->silent_ns > SHOAL_BEAT_UNHEARD_NS)) {
        worker->unheard = ranks;
        sim_work_later(&sim->hosts[worker->host], worker, SIM_WORK_UNHEARD, SHOAL_MS);
    }
}

/* The members that live; false: one cannot take part now. */
static bool gather(struct sim *sim, const struct sim_worker *first, struct team *team)
{
    const struct shoal_worker_epoch *epoch = first->last_epoch;

    *team = (struct team){ .epoch = epoch, .count = epoch->member_count, .holder_here = epoch->holder == 0 };
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        struct sim_worker *member = sim_worker_find(sim, epoch->members[i].worker_id);

        if (member == NULL || sim_worker_stands(member) || !member->entered || member->epoch != first->epoch)
            return false;
        for (uint32_t j = 0; j < i; j++)
            if (!sim_can_train(sim, member->host, team->members[j]->host))
                return false;
        team->holder_here =
            team->holder_here || (member->id == epoch->holder &&
                                  (member->complete >= epoch->decided_step || member->applied >= epoch->decided_step));
        team->members[i] = member;
    }
    return true;
}

static void complete_some(struct sim_job *job, const struct team *team, uint64_t step, uint64_t *budget)
{
    uint32_t first = (uint32_t)shoal_rand_below(&job->chance, team->count);

    for (uint32_t n = 0; n<team->count && * budget> 0; n++) {
        struct sim_worker *member = team->members[(first + n) % team->count];

        if (member->complete >= step)
            continue;
        member->complete = step;
        (*budget)--;
    }
}

static void mark_records(struct sim *sim, struct sim_worker *first, uint64_t step)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RECORDS_MARK };

    event.u.records_mark.job = sim->jobs[first->job].id;
    event.u.records_mark.call = first->call;
    event.u.records_mark.step = step;
    if (sim->hosts[first->host].agent)
        sim_host_answer(&sim->hosts[first->host], &event, 20 * SHOAL_MS);
}

/* The agent looks at the control page. */
static void see_step(struct sim *sim, const struct sim_worker *member)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STEPPED };

    event.u.stepped.worker_id = member->id;
    event.u.stepped.epoch_word = member->epoch;
    event.u.stepped.step = member->applied;
    sim_host_answer(&sim->hosts[member->host], &event, 50 * SHOAL_MS);
}

static void applied(struct sim *sim, struct sim_job *job, struct sim_worker *member, uint32_t rank, uint64_t step)
{
    if (job->steps_done + 1 < step)
        sim_fail(sim, "step %llu is applied, but %llu was the last", (unsigned long long)step,
                 (unsigned long long)job->steps_done);
    if (member->epoch < job->newest_epoch && step > job->newest_decided)
        sim_fail(sim, "worker %llx applies step %llu in epoch (%u,%u), but a newer one goes on from step %llu",
                 (unsigned long long)member->id, (unsigned long long)step, shoal_epoch_of_word(member->epoch).e,
                 shoal_epoch_of_word(member->epoch).k, (unsigned long long)job->newest_decided);
    member->applied = step;
    if (step > job->steps_done)
        job->steps_done = step;
    if (step % RECORDS_STEPS == 0 && sim->hosts[member->host].agent)
        see_step(sim, member);
    if (rank == 0 && step % RECORDS_STEPS == 0)
        sim_work_later(&sim->hosts[member->host], member, SIM_WORK_RECORDS, SHOAL_MS);
    if (rank == 0 && step % 20 == 0)
        mark_records(sim, member, step);
    if (rank == 0 && step % SNAPSHOT_STEPS == 0 && member->snapshot_said < step) {
        member->snapshot_said = step;
        sim_work_later(&sim->hosts[member->host], member, SIM_WORK_SNAPSHOT, 10 * SHOAL_MS);
    }
}

/* Everyone applies D before step D + 1. */
static bool decide(struct sim *sim, struct sim_job *job, const struct team *team)
{
    const struct shoal_worker_epoch *epoch = team->epoch;

    for (uint32_t i = 0; i < team->count; i++) {
        struct sim_worker *member = team->members[i];

        if (member->applied >= epoch->decided_step)
            continue;
        if (!team->holder_here)
            sim_fail(sim, "epoch %u: the holder does not have step %llu", epoch->epoch.e,
                     (unsigned long long)epoch->decided_step);
        if (!epoch->members[i].has_state && epoch->donor == 0)
            sim_fail(sim, "epoch %u: a joiner and no donor", epoch->epoch.e);
        if (epoch->decided_step > job->steps_done + 1)
            sim_fail(sim, "epoch %u decides step %llu, but %llu was the last", epoch->epoch.e,
                     (unsigned long long)epoch->decided_step, (unsigned long long)job->steps_done);
        member->applied = member->complete = epoch->decided_step;
        if (epoch->decided_step > job->steps_done)
            job->steps_done = epoch->decided_step;
        return false;
    }
    return true;
}

static void advance(struct sim *sim, struct sim_worker *first)
{
    struct sim_job *job = &sim->jobs[first->job];
    struct team team;
    uint64_t step = UINT64_MAX;
    uint64_t budget;

    if (!gather(sim, first, &team) || !decide(sim, job, &team))
        return;
    for (uint32_t i = 0; i < team.count; i++)
        if (team.members[i]->applied < step)
            step = team.members[i]->applied;
    if (++step > job->steps) {
        for (uint32_t i = 0; i < team.count; i++)
            if (!team.members[i]->done) {
                team.members[i]->done = true;
                sim_work_later(&sim->hosts[team.members[i]->host], team.members[i], SIM_WORK_DONE, SHOAL_MS);
            }
        return;
    }
    budget = 1 + shoal_rand_below(&job->chance, 2u * team.count);
    complete_some(job, &team, step, &budget);
    for (uint32_t i = 0; i < team.count; i++)
        if (team.members[i]->complete < step)
            return;
    for (uint32_t i = 0; i < team.count && budget > 0; i++) {
        if (team.members[i]->applied >= step)
            continue;
        applied(sim, job, team.members[i], i, step);
        budget--;
    }
}

void sim_train(struct sim *sim, uint32_t index)
{
    bool some = false;

    for (uint32_t h = 0; h < sim->host_count && !sim->failed; h++) {
        for (struct sim_worker *worker = sim->hosts[h].workers; worker != NULL; worker = worker->next) {
            if (worker->job != index || worker->role != SHOAL_JOB_ENGINE)
                continue;
            some = true;
            if (worker->entered && !sim_worker_stands(worker))
                watch_links(sim, worker);
            if (worker->entered && !sim_worker_stands(worker) && worker->last_epoch->members[0].worker_id == worker->id)
                advance(sim, worker);
        }
    }
    sim->jobs[index].training = some;
    if (some)
        sim_push(sim, SIM_TRAIN, 0, TICK_NS)->word = index;
}
