package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// maxBatch bounds how many changes share a transaction, and so how long the
	// first of them waits for the last.
	maxBatch = 512
	// beginPatience is how long one try to begin waits for another program;
	// between tries the writer looks whether anybody still waits for it.
	beginPatience = 50 * time.Millisecond
	// alonePatience is how long a change waits that has already been begun once.
	alonePatience = 2 * time.Second
)

// writer owns the one connection that changes the database. It puts whatever is
// queued into one transaction, so that everybody who waits shares one sync of the
// disk.
type writer struct {
	conn *sql.Conn
	tx   *tx
	disk *disk
	log  *slog.Logger

	queue   chan *op
	closing chan struct{}
	closed  chan struct{}
	locked  atomic.Bool           // somebody else has the database locked
	failure atomic.Pointer[error] // set once only a restart helps
}

// op is one change that somebody waits for.
type op struct {
	fn    func(context.Context, *tx) error
	state atomic.Int32
	err   error      // what fn returned
	done  chan error // gets one value
}

// The states of an op. Whoever moves it on from pending decides its fate.
const (
	pending int32 = iota
	running
	abandoned
)

// tx is the transaction that changes are made in.
type tx struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	wrote bool // the op at work changed something
}

func newWriter(conn *sql.Conn, d *disk, log *slog.Logger) *writer {
	w := &writer{
		conn:    conn,
		tx:      &tx{conn: conn, stmts: map[string]*sql.Stmt{}},
		disk:    d,
		log:     log,
		queue:   make(chan *op, maxBatch),
		closing: make(chan struct{}),
		closed:  make(chan struct{}),
	}
	go w.run()
	return w
}

// do has fn run and returns once its change is durable. When ctx ends before fn
// was begun, it never is; once begun, its outcome is waited for.
func (w *writer) do(ctx context.Context, fn func(context.Context, *tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.broken(); err != nil {
		return err
	}
	o := &op{fn: fn, done: make(chan error, 1)}
	select {
	case w.queue <- o:
	case <-ctx.Done():
		return w.late(ctx)
	case <-w.closing:
		return ErrClosed
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		if o.state.CompareAndSwap(pending, abandoned) {
			return w.late(ctx)
		}
	case <-w.closed:
		if o.state.CompareAndSwap(pending, abandoned) {
			return ErrClosed
		}
	}
	return <-o.done
}

// late is why a change was not begun before ctx ended.
func (w *writer) late(ctx context.Context) error {
	if w.locked.Load() {
		return fmt.Errorf("%w (%w)", ErrLocked, context.Cause(ctx))
	}
	return fmt.Errorf("wait for the database: %w", context.Cause(ctx))
}

// broken is the reason for which nothing is stored any more, or nil.
func (w *writer) broken() error {
	if err := w.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (w *writer) close() error {
	close(w.closing)
	<-w.closed
	return errors.Join(closeStmts(w.tx.stmts), w.conn.Close())
}

func (w *writer) run() {
	defer close(w.closed)
	for {
		var first *op
		select {
		case first = <-w.queue:
		default:
			select {
			case first = <-w.queue:
			case <-w.closing:
				return
			}
		}
		if w.begin(first) {
			w.batch(first)
		}
	}
}

// begin starts a transaction for the first op, as long as somebody waits for it.
// It reports whether there is one.
func (w *writer) begin(first *op) bool {
	for first.state.Load() == pending {
		err := w.exec("BEGIN IMMEDIATE")
		if err == nil {
			w.locked.Store(false)
			return true
		}
		if code(err)&0xff == sqlite3.SQLITE_BUSY {
			w.locked.Store(true)
			select {
			case <-w.closing:
				err = ErrClosed
			default:
				continue
			}
		}
		if first.state.CompareAndSwap(pending, running) {
			first.done <- w.judge(err)
		}
	}
	return false
}

// batch runs first and whatever else is queued in the transaction that was begun,
// and commits.
func (w *writer) batch(first *op) {
	ops := make([]*op, 0, 16)
	spoiled := false
	for o := first; o != nil; {
		if o.state.CompareAndSwap(pending, running) {
			ops = append(ops, o)
			// An op that failed before it changed anything harms nobody.
			if o.err = w.apply(o); o.err != nil && (w.tx.wrote || code(o.err) != 0) {
				spoiled = true
				break
			}
		}
		if len(ops) == maxBatch {
			break
		}
		select {
		case o = <-w.queue:
		default:
			o = nil
		}
	}
	if !spoiled {
		err := w.exec("COMMIT")
		if err == nil {
			for _, o := range ops {
				o.done <- o.err
			}
			return
		}
		w.rollback()
		if !w.again(err) {
			err = w.judge(err)
			for _, o := range ops {
				o.done <- err
			}
			return
		}
	} else {
		w.rollback()
	}
	for _, o := range ops {
		o.done <- w.alone(o)
	}
}

// alone runs an op in a transaction of its own.
func (w *writer) alone(o *op) error {
	err := w.attempt(o)
	if err != nil && w.again(err) {
		err = w.attempt(o)
	}
	return w.judge(err)
}

func (w *writer) attempt(o *op) error {
	if err := w.broken(); err != nil {
		return err
	}
	for tries := alonePatience / beginPatience; ; tries-- {
		err := w.exec("BEGIN IMMEDIATE")
		if err == nil {
			break
		}
		if code(err)&0xff != sqlite3.SQLITE_BUSY || tries == 0 {
			return err
		}
	}
	err := w.apply(o)
	if err == nil {
		err = w.exec("COMMIT")
	}
	if err != nil {
		w.rollback()
	}
	return err
}

func (w *writer) apply(o *op) error {
	w.tx.wrote = false
	return o.fn(context.Background(), w.tx)
}

// rollback ends a transaction that SQLite may have ended itself.
func (w *writer) rollback() {
	if err := w.exec("ROLLBACK"); err != nil {
		w.log.Debug("transaction was already rolled back", "err", err)
	}
}

// again reports whether what failed with err may work now.
func (w *writer) again(err error) bool {
	return w.disk.isFull(err) && w.disk.release()
}

// judge turns an error into what the caller is told, and stops everything after
// one that leaves the file in doubt: a failed sync is not made good by another.
func (w *writer) judge(err error) error {
	if err == nil {
		return nil
	}
	if w.disk.isFull(err) {
		w.disk.release()
		if !errors.Is(err, ErrFull) {
			err = &fault{reason: ErrFull, cause: err}
		}
		return err
	}
	err = explain(err)
	if errors.Is(err, ErrBroken) || errors.Is(err, ErrDamaged) {
		if w.failure.CompareAndSwap(nil, &err) {
			w.log.Error("nothing is stored any more until a restart", "err", err)
		}
	}
	return err
}

func (w *writer) exec(query string) error {
	_, err := w.tx.exec(context.Background(), query)
	return err
}

// prepared implements preparer. The queries are constants, so the cache is
// bounded.
func (t *tx) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	if s, ok := t.stmts[query]; ok {
		return s, nil
	}
	s, err := t.conn.PrepareContext(ctx, query)
	if err == nil {
		t.stmts[query] = s
	}
	return s, err
}

// exec changes rows and returns how many.
func (t *tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	stmt, err := t.prepared(ctx, query)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	if n > 0 {
		t.wrote = true
	}
	return n, err
}

// insert runs a query that ends with RETURNING an id. The id is 0 when the row
// was there already.
func (t *tx) insert(ctx context.Context, query string, args ...any) (id int64, err error) {
	stmt, err := t.prepared(ctx, query)
	if err != nil {
		return 0, err
	}
	err = stmt.QueryRowContext(ctx, args...).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err == nil {
		t.wrote = true
	}
	return id, err
}
