// Package storage keeps what must not be lost, in SQLite: the inbox, transcripts,
// runs, approvals, the outbox, usage, and the audit log. [DB] implements
// [pipeline.Store] and [session.Store]; what the calls mean is said there.
//
// There is one writer, which puts the changes of everybody who waits into one
// transaction, and a few readers that never wait for it. Every query is written
// once, with $1 and ON CONFLICT and nothing that only SQLite knows, beside the
// code that scans it. One process serves a data folder; others may read it.
package storage

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver

	"trill/engine/session"
	"trill/pipeline"
)

// The files in the data folder.
const (
	fileName    = "trill.db"
	lockName    = "trill.lock"
	ballastName = "ballast"
)

// DefaultBallast is a good [Config.Ballast] for a service.
const DefaultBallast = 64 << 20

// Config says where the database is.
type Config struct {
	// Dir is the data folder; it is made when it is not there.
	Dir string
	// ReadOnly opens a database that may be in use by the service. Nothing is
	// created, upgraded or locked, and every change is refused.
	ReadOnly bool
	// Ballast is the size in bytes of a file that is given up when the disk is
	// full, so that what is under way can still be finished; 0: none.
	Ballast int64
	// Wait is how long Open waits for another program that has the database
	// locked; 0 means 5 seconds.
	Wait time.Duration
	// Recheck is how long a full disk is left alone before it is looked at
	// again; 0 means 5 seconds.
	Recheck time.Duration
}

// Validate reports every fault of the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("bot.data_dir: name a folder to keep the database in"))
	}
	if c.Ballast < 0 {
		errs = append(errs, fmt.Errorf("ballast: %d bytes; use 0 or more", c.Ballast))
	}
	return errors.Join(errs...)
}

// DB is an open database. Its methods may be called from several goroutines.
type DB struct {
	conf Config
	log  *slog.Logger
	now  func() time.Time
	// owner tells the rows this process works on from those a dead one left.
	owner string

	lock   *os.File // nil when read-only
	pool   *sql.DB  // the writer's; nil when read-only
	writer *writer  // nil when read-only
	disk   *disk    // nil when read-only
	reads  *sql.DB

	checking  chan struct{}      // closed when the check beside the work is over; nil without one
	stopCheck context.CancelFunc // ends it early

	mu    sync.Mutex           // guards stmts
	stmts map[string]*sql.Stmt // of the readers; nil once the database is closed
}

var (
	_ pipeline.Store = (*DB)(nil)
	_ session.Store  = (*DB)(nil)
)

// Open opens the database in conf.Dir, creating or upgrading it when needed. It
// fails with [ErrInUse], [ErrNotWritable], [ErrLocked], [ErrDamaged], [ErrNewer],
// [ErrOlder] or [ErrFull] where one of these is the reason, and with
// [os.ErrNotExist] when there is nothing to read.
func Open(ctx context.Context, conf Config, log *slog.Logger) (_ *DB, err error) {
	if err := conf.Validate(); err != nil {
		return nil, err
	}
	if conf.Wait == 0 {
		conf.Wait = 5 * time.Second
	}
	if conf.Recheck == 0 {
		conf.Recheck = 5 * time.Second
	}
	if conf.Dir, err = filepath.Abs(conf.Dir); err != nil {
		return nil, err
	}
	db := &DB{
		conf:  conf,
		log:   log,
		now:   time.Now,
		owner: rand.Text(),
		stmts: map[string]*sql.Stmt{},
	}
	if conf.ReadOnly {
		err = db.openReadOnly(ctx)
	} else {
		err = db.openService(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", filepath.Join(conf.Dir, fileName), explain(err)), db.Close())
	}
	return db, nil
}

func (db *DB) openReadOnly(ctx context.Context) error {
	if _, err := os.Stat(db.path()); err != nil {
		return fmt.Errorf("there is no database to read; start the service once: %w", err)
	}
	db.openReaders()
	have, want, err := db.versions(ctx, db.reads)
	if err != nil {
		return err
	}
	if have < want {
		return fmt.Errorf("%w: it has version %d, this program needs %d", ErrOlder, have, want)
	}
	return nil
}

func (db *DB) openService(ctx context.Context) (err error) {
	if err := os.MkdirAll(db.conf.Dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	if db.lock, err = takeLock(filepath.Join(db.conf.Dir, lockName)); err != nil {
		return err
	}
	// SQLite gives the files beside this one its mode.
	f, err := os.OpenFile(db.path(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}

	db.pool, err = sql.Open("sqlite", db.dsn(url.Values{
		"_txlock": {"immediate"},
		"_pragma": {
			"busy_timeout(" + strconv.FormatInt(db.conf.Wait.Milliseconds(), 10) + ")",
			"journal_mode(WAL)",
			"synchronous(FULL)",
			"foreign_keys(1)",
			"secure_delete(1)", // what was erased is not to be found in the file
			"cache_size(-8000)",
		},
	}))
	if err != nil {
		return err
	}
	db.pool.SetMaxOpenConns(1)
	conn, err := db.pool.Conn(ctx)
	if err != nil {
		return err
	}
	if err := db.prepare(ctx, conn, size); err != nil {
		return errors.Join(err, conn.Close())
	}
	db.disk = newDisk(db.conf, db.log, db.now)
	db.openReaders()
	db.writer = newWriter(conn, db.disk, db.log)
	if checkedFirst < size && size <= checkedBeside {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		db.checking, db.stopCheck = make(chan struct{}), cancel
		go db.checkBeside(ctx)
	}
	return nil
}

// Up to checkedFirst bytes, a file is checked before anything else at every start.
// A larger one would keep a restart waiting and is checked beside the work, unless
// it has more than checkedBeside; `bot doctor` checks any.
const (
	checkedFirst  = 4 << 20
	checkedBeside = 1 << 30
)

// checkBeside looks for damage while the service works. When it finds some,
// nothing is stored any more.
func (db *DB) checkBeside(ctx context.Context) {
	defer close(db.checking)
	pool, err := sql.Open("sqlite", db.dsn(url.Values{"_pragma": {"query_only(1)", "cache_size(-500)"}}))
	if err == nil {
		var conn *sql.Conn
		if conn, err = pool.Conn(ctx); err == nil {
			err = errors.Join(check(ctx, conn, "PRAGMA quick_check(10)"), conn.Close())
		}
		err = errors.Join(err, pool.Close())
	}
	if err != nil && ctx.Err() == nil {
		db.log.Error("check of the database", "err", db.writer.judge(err))
	}
}

// prepare checks the file and brings its schema up to date.
func (db *DB) prepare(ctx context.Context, conn *sql.Conn, size int64) error {
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("%w: the file system cannot share memory between processes (journal mode is %s)", ErrNotWritable, mode)
	}
	if 0 < size && size <= checkedFirst {
		if err := check(ctx, conn, "PRAGMA quick_check(10)"); err != nil {
			return err
		}
	}
	if err := db.migrate(ctx, conn); err != nil {
		return err
	}
	// From here on the writer itself decides how long to wait.
	_, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = "+strconv.FormatInt(beginPatience.Milliseconds(), 10))
	return err
}

func (db *DB) openReaders() {
	values := url.Values{
		"_pragma": {
			"busy_timeout(2000)",
			"query_only(1)",
			"cache_size(-2000)",
		},
	}
	if db.conf.ReadOnly {
		values.Set("mode", "ro")
	}
	// It cannot fail: the driver is linked in and nothing is opened yet.
	db.reads, _ = sql.Open("sqlite", db.dsn(values))
	db.reads.SetMaxOpenConns(4)
	db.reads.SetMaxIdleConns(4)
	db.reads.SetConnMaxIdleTime(5 * time.Minute)
}

func (db *DB) path() string { return filepath.Join(db.conf.Dir, fileName) }

func (db *DB) dsn(values url.Values) string {
	return (&url.URL{Scheme: "file", Path: db.path(), RawQuery: values.Encode()}).String()
}

// Close finishes what was begun and closes the database. Calls that wait get
// [ErrClosed].
func (db *DB) Close() error {
	db.mu.Lock()
	stmts := db.stmts
	db.stmts = nil
	db.mu.Unlock()
	if stmts == nil {
		return nil
	}
	var errs []error
	if db.checking != nil {
		db.stopCheck()
		<-db.checking
	}
	if db.writer != nil {
		errs = append(errs, db.writer.close())
	}
	if db.reads != nil {
		errs = append(errs, closeStmts(stmts), db.reads.Close())
	}
	if db.pool != nil {
		errs = append(errs, db.pool.Close())
	}
	if db.lock != nil {
		errs = append(errs, db.lock.Close())
	}
	return errors.Join(errs...)
}

// closeStmts closes prepared statements: as long as one is open, SQLite keeps the
// connection, and with it the log that the last one to close would clear away.
func closeStmts(stmts map[string]*sql.Stmt) error {
	var errs []error
	for _, s := range stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Degraded says why new messages are not accepted at the moment: [ErrFull], or
// [ErrBroken] when only a restart helps. It is nil when all is well.
func (db *DB) Degraded() error {
	if db.writer == nil {
		return nil
	}
	if err := db.writer.broken(); err != nil {
		return err
	}
	return db.disk.full()
}

// Ping reports whether the database can be read.
func (db *DB) Ping(ctx context.Context) error {
	_, err := one(ctx, db, func(s scanner) (n int, err error) { return n, s.Scan(&n) }, `SELECT 1`)
	return err
}

// write runs fn in a transaction that others may share: fn may run again, so it
// changes nothing but what tx does and its own results. The context that fn gets
// does not end.
func (db *DB) write(ctx context.Context, fn func(ctx context.Context, t *tx) error) error {
	if db.writer == nil {
		return ErrReadOnly
	}
	return db.writer.do(ctx, fn)
}

// prepared implements preparer for reading outside of a transaction.
func (db *DB) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.stmts == nil {
		return nil, ErrClosed
	}
	if s, ok := db.stmts[query]; ok {
		return s, nil
	}
	s, err := db.reads.PrepareContext(ctx, query)
	if err == nil {
		db.stmts[query] = s
	}
	return s, err
}

// preparer is what queries run on: the writer's transaction, or the readers.
type preparer interface {
	prepared(ctx context.Context, query string) (*sql.Stmt, error)
}

// scanner is a row.
type scanner interface{ Scan(dest ...any) error }

// one returns the first row of a query; pipeline.ErrNotFound when it has none.
func one[T any](ctx context.Context, p preparer, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	var zero T
	stmt, err := p.prepared(ctx, query)
	if err != nil {
		return zero, explain(err)
	}
	v, err := scan(stmt.QueryRowContext(ctx, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return zero, pipeline.ErrNotFound
	}
	if err != nil {
		return zero, explain(err)
	}
	return v, nil
}

// all returns every row of a query.
func all[T any](ctx context.Context, p preparer, scan func(scanner) (T, error), query string, args ...any) (vs []T, err error) {
	stmt, err := p.prepared(ctx, query)
	if err != nil {
		return nil, explain(err)
	}
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return nil, explain(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, explain(err)
		}
		vs = append(vs, v)
	}
	return vs, explain(rows.Err())
}

// micros is how times are stored.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// truth is how truth values are stored.
func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}
