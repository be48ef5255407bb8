package storage

import (
	"context"
	"errors"
	"fmt"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
)

const runColumns = `id, session, inbox, channel, room, thread, reply_to, person, role, project, stop, attempts,
	started_at, ended_at, reason`

func scanRun(s scanner) (r pipeline.Run, err error) {
	var started, ended int64
	k := &r.Target.Key
	err = s.Scan(&r.ID, &r.Session, &r.Inbox, &k.Channel, &k.Room, &k.Thread, &r.Target.ReplyTo, &r.Person, &r.Role,
		&r.Project, &r.Stop, &r.Attempts, &started, &ended, &r.Reason)
	r.StartedAt, r.EndedAt = fromMicros(started), fromMicros(ended)
	return r, err
}

// StartRun implements [pipeline.Store]. The project of the thread is the run's,
// unless the run names one itself.
func (db *DB) StartRun(ctx context.Context, s pipeline.StartRun) (pipeline.Run, error) {
	var run pipeline.Run
	err := db.write(ctx, func(ctx context.Context, t *tx) error {
		key := s.Run.Target.Key
		run = s.Run
		run.Inbox, run.Attempts, run.StartedAt = s.Row.ID, 1, fromMicros(micros(s.At))

		thread, err := one(ctx, t, scanThread, selectThread, key.Channel, key.Room, key.Thread)
		if err != nil && !errors.Is(err, pipeline.ErrNotFound) {
			return err
		}
		if run.Project == "" {
			run.Project = thread.Project
		}
		if run.Session = thread.Session; run.Session == "" {
			run.Session = s.NewSession
		}

		// Two unique indexes hold the promise of one open run a thread and a
		// session.
		const q = `
			INSERT INTO runs (id, session, inbox, channel, room, thread, reply_to, person, role, project, stop,
				attempts, started_at, ended_at, reason, owner, epoch, lease_until)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, '', $11, $12, 0, '', $13, 1, 0)
			ON CONFLICT DO NOTHING`
		if err := changed(t.exec(ctx, q, string(run.ID), string(run.Session), run.Inbox, key.Channel, key.Room,
			key.Thread, string(run.Target.ReplyTo), run.Person, string(run.Role), run.Project, run.Attempts,
			micros(s.At), db.owner)); err != nil {
			return err
		}
		if err := closeRow(ctx, t, s.Row.ID, pipeline.Done, "", run.ID); err != nil {
			return err
		}
		if thread.Session == "" {
			if thread.Project == "" {
				thread.Project = run.Project
			}
			if err := putThread(ctx, t, pipeline.Thread{Key: key, Session: run.Session, Project: thread.Project}); err != nil {
				return err
			}
		}
		last, err := one(ctx, t, scanInt, `SELECT COALESCE((SELECT last_seq FROM sessions WHERE id = $1), 0)`, run.Session)
		if err != nil {
			return err
		}
		ss, err := stretches([]session.Event{{
			Session: run.Session, Seq: last + 1, Run: run.ID, Time: s.At, Kind: session.KindUser, Data: &s.User,
		}})
		if err != nil {
			return err
		}
		return appendEvents(ctx, t, ss, origin{key: key, project: run.Project})
	})
	if err != nil {
		return pipeline.Run{}, err
	}
	return run, nil
}

const selectWaiting = `
	SELECT ` + inboxColumns + ` FROM inbox
	WHERE channel = $1 AND room = $2 AND thread = $3 AND state IN ('received', 'waiting') AND state = 'waiting'
	ORDER BY id`

// Steer implements [pipeline.Store]. A run that was asked to stop takes nothing
// more in: what waits starts the next run.
func (db *DB) Steer(ctx context.Context, s pipeline.Steer) ([]session.Event, error) {
	key := s.Run.Target.Key
	person := s.Person
	if person == nil {
		person = func(r pipeline.InboxRow) string { return pipeline.PersonKey(r.Message.Channel, r.Message.Sender.ID) }
	}
	// Most turns have nobody waiting, which needs no transaction to be known.
	rows, err := all(ctx, db, scanInbox, selectWaiting, key.Channel, key.Room, key.Thread)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	var evs []session.Event
	err = db.write(ctx, func(ctx context.Context, t *tx) error {
		evs = nil
		run, err := one(ctx, t, scanRun, selectRun, s.Run.ID)
		if err != nil {
			return err
		}
		if !run.EndedAt.IsZero() {
			return pipeline.ErrGone
		}
		if run.Stop != "" {
			return nil
		}
		rows, err := all(ctx, t, scanInbox, selectWaiting, key.Channel, key.Room, key.Thread)
		if err != nil {
			return err
		}
		var ids []pipeline.InboxID
		for _, r := range rows {
			if person(r) != run.Person {
				continue
			}
			user := s.Event(r)
			ids = append(ids, r.ID)
			evs = append(evs, session.Event{
				Session: run.Session, Seq: s.Next + int64(len(evs)), Run: run.ID, Time: fromMicros(micros(s.At)),
				Kind: session.KindUser, Data: &user,
			})
		}
		if len(evs) == 0 {
			return nil
		}
		ss, err := stretches(evs)
		if err != nil {
			return err
		}
		if err := appendEvents(ctx, t, ss, origin{}); err != nil {
			return err
		}
		for _, id := range ids {
			if err := closeRow(ctx, t, id, pipeline.Done, "", run.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return evs, nil
}

// FinishRun implements [pipeline.Store]. Questions of the run that nobody
// answered expire with it.
func (db *DB) FinishRun(ctx context.Context, f pipeline.FinishRun) error {
	ss, err := stretches(f.Events)
	if err != nil {
		return err
	}
	ds, err := db.fill(f.Deliveries, f.At, f.Run, 0)
	if err != nil {
		return err
	}
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		run, err := one(ctx, t, scanRun, selectRun, f.Run)
		if errors.Is(err, pipeline.ErrNotFound) || err == nil && !run.EndedAt.IsZero() {
			return fmt.Errorf("finish run %s: %w", f.Run, pipeline.ErrGone)
		}
		if err != nil {
			return err
		}
		if run.Stop != "" && !f.Stopped {
			return fmt.Errorf("finish run %s: %w", f.Run, pipeline.ErrStopRequested)
		}
		if err := appendEvents(ctx, t, ss, origin{key: run.Target.Key, project: run.Project}); err != nil {
			return err
		}
		const end = `UPDATE runs SET ended_at = $2, reason = $3 WHERE id = $1 AND ended_at = 0`
		if err := changed(t.exec(ctx, end, string(f.Run), max(micros(f.At), 1), string(f.Reason))); err != nil {
			return err
		}
		if err := dropOvertaken(ctx, t, f.Run); err != nil {
			return err
		}
		if err := expireApprovals(ctx, t, f.Run, f.At); err != nil {
			return err
		}
		for i := range ds {
			if ds[i].Inbox == 0 {
				ds[i].Inbox = run.Inbox
			}
		}
		return enqueue(ctx, t, ds)
	})
}

// OpenRun implements [pipeline.Store].
func (db *DB) OpenRun(ctx context.Context, key adapters.ThreadKey) (pipeline.Run, error) {
	var run pipeline.Run
	err := db.write(ctx, func(ctx context.Context, t *tx) (err error) {
		const q = `
			UPDATE runs SET attempts = attempts + 1, owner = $4, epoch = epoch + 1
			WHERE channel = $1 AND room = $2 AND thread = $3 AND ended_at = 0
			RETURNING ` + runColumns
		run, err = one(ctx, t, scanRun, q, key.Channel, key.Room, key.Thread, db.owner)
		t.wrote = err == nil
		return err
	})
	return run, err
}

const selectRun = `SELECT ` + runColumns + ` FROM runs WHERE id = $1`

// Run implements [pipeline.Store].
func (db *DB) Run(ctx context.Context, id session.RunID) (pipeline.Run, error) {
	return one(ctx, db, scanRun, selectRun, id)
}

// stopRun asks the open run of a thread to end. The first reason stays.
func stopRun(ctx context.Context, t *tx, key adapters.ThreadKey, why string) error {
	const q = `
		UPDATE runs SET stop = $4
		WHERE channel = $1 AND room = $2 AND thread = $3 AND ended_at = 0 AND stop = ''`
	_, err := t.exec(ctx, q, key.Channel, key.Room, key.Thread, why)
	return err
}
