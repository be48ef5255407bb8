package storage_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
	"trill/storage"
)

// acceptUntil is set in the process that the kill and sync tests start.
const acceptUntil = "TRILL_TEST_ACCEPT_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(acceptUntil); dir != "" {
		acceptForever(dir)
	}
	os.Exit(m.Run())
}

// acceptForever stores messages from several goroutines and prints the id of each
// one once it was acknowledged, until storing fails or the process is killed.
func acceptForever(dir string) {
	db, err := storage.Open(context.Background(), storage.Config{Dir: dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	start := time.Now().UnixNano()
	var out sync.Mutex
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%d-%d-%d", start, c, n)
				if _, err := db.Accept(context.Background(), []pipeline.InboxRow{row(id)}); err != nil {
					out.Lock()
					fmt.Println("error", err)
					out.Unlock()
					return
				}
				out.Lock()
				fmt.Println("acked", id)
				out.Unlock()
			}
		})
	}
	wg.Wait()
	os.Exit(0)
}

func row(id string) pipeline.InboxRow {
	return pipeline.InboxRow{State: pipeline.Received, Message: adapters.InboundMessage{
		Channel: "cloud", ID: adapters.MessageID(id), Kind: adapters.KindText, Room: "lobby", Text: "text of " + id,
		Sender: adapters.Person{ID: "ann"},
	}}
}

func accept(t *testing.T, db *storage.DB, id string) {
	t.Helper()
	if _, err := db.Accept(t.Context(), []pipeline.InboxRow{row(id)}); err != nil {
		t.Fatal(err)
	}
}

// stored returns the ids of the open messages in the lobby.
func stored(t *testing.T, db *storage.DB) map[string]bool {
	t.Helper()
	rows, err := db.Open(t.Context(), adapters.ThreadKey{Channel: "cloud", Room: "lobby"})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, r := range rows {
		ids[string(r.Message.ID)] = true
	}
	return ids
}

// refused opens the database and expects a reason in one line.
func refused(t *testing.T, conf storage.Config, want error) {
	t.Helper()
	db, err := storage.Open(t.Context(), conf, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Fatalf("it was opened, want: %v", errors.Join(want, db.Close()))
	}
	if !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got error %q, want one line with %q", err, want)
	}
}

// raw opens the file beside the database.
func raw(t *testing.T, dir string) *sql.DB {
	t.Helper()
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "trill.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSecondInstanceIsRefused(t *testing.T) {
	dir := t.TempDir()
	db := start(t, storage.Config{Dir: dir})
	refused(t, storage.Config{Dir: dir}, storage.ErrInUse)
	must(t, db.Close())
	open(t, storage.Config{Dir: dir})
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	db := open(t, storage.Config{Dir: dir, Ballast: 1 << 20})
	accept(t, db, "1")
	for _, name := range append(files(t, dir), ".") {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}

func TestReadingBesideTheService(t *testing.T) {
	dir := t.TempDir()
	refused(t, storage.Config{Dir: dir, ReadOnly: true}, fs.ErrNotExist)
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("looking made %v", names)
	}
	db := start(t, storage.Config{Dir: dir})
	accept(t, db, "1")
	reader := open(t, storage.Config{Dir: dir, ReadOnly: true})
	accept(t, db, "2") // the reader is in nobody's way
	if got := stored(t, reader); !got["1"] || !got["2"] {
		t.Errorf("the reader sees %v", got)
	}
	if _, err := reader.Accept(t.Context(), []pipeline.InboxRow{row("3")}); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("accept: %v, want %v", err, storage.ErrReadOnly)
	}
	must(t, reader.Degraded())
	must(t, reader.Ping(t.Context()))
	must(t, db.Close())
	if got := stored(t, open(t, storage.Config{Dir: dir, ReadOnly: true})); !got["2"] {
		t.Errorf("after the service ended the reader sees %v", got)
	}
}

// lock has another program lock the database until the returned function is
// called.
func lock(t *testing.T, dir string) (unlock func()) {
	t.Helper()
	conn, err := raw(t, dir).Conn(t.Context())
	must(t, err)
	_, err = conn.ExecContext(t.Context(), "BEGIN EXCLUSIVE")
	must(t, err)
	return func() {
		_, err := conn.ExecContext(t.Context(), "ROLLBACK")
		must(t, errors.Join(err, conn.Close()))
	}
}

func TestLockedDatabaseRefusesInTime(t *testing.T) { // F4
	dir := t.TempDir()
	db := open(t, storage.Config{Dir: dir})
	accept(t, db, "before")
	unlock := lock(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			_, err := db.Accept(ctx, []pipeline.InboxRow{row("late " + strconv.Itoa(n))})
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, storage.ErrLocked) {
				t.Errorf("accept: %v; want %v because of %v", err, storage.ErrLocked, context.DeadlineExceeded)
			}
		})
	}
	wg.Wait()
	if got := stored(t, db); len(got) != 1 {
		t.Errorf("reading while it is locked: %v", got)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := db.Accept(t.Context(), []pipeline.InboxRow{row("patient")})
		waits <- err
	}()
	unlock()
	must(t, <-waits)
	accept(t, db, "after")
	if got := stored(t, db); len(got) != 3 {
		t.Errorf("stored %v; want what was acknowledged and nothing else", got)
	}
}

func TestOpeningALockedDatabase(t *testing.T) {
	dir := t.TempDir()
	must(t, start(t, storage.Config{Dir: dir}).Close())
	_, err := raw(t, dir).Exec("DROP TABLE schema_version; PRAGMA journal_mode = DELETE")
	must(t, err)
	defer lock(t, dir)()
	refused(t, storage.Config{Dir: dir, Wait: time.Millisecond}, storage.ErrLocked)
}

func TestOneChangeThatFailsHarmsNoOther(t *testing.T) {
	dir := t.TempDir()
	db := open(t, storage.Config{Dir: dir})
	user := func(id session.ID, seq int64) session.Event {
		return session.Event{Session: id, Seq: seq, Kind: session.KindUser, Data: &session.User{Text: "x"}}
	}
	must(t, db.Append(t.Context(), user("sess_taken", 1)))
	unlock := lock(t, dir) // so that everything comes into one transaction
	var wg sync.WaitGroup
	for n := range 30 {
		wg.Go(func() {
			id := session.ID("sess_" + strconv.Itoa(n))
			if n%3 != 0 {
				if err := db.Append(t.Context(), user(id, 1)); err != nil {
					t.Errorf("append to %s: %v", id, err)
				}
				return
			}
			// The first half of it fits and must not stay.
			if err := db.Append(t.Context(), user(id, 1), user("sess_taken", 1)); !errors.Is(err, session.ErrConflict) {
				t.Errorf("append to %s: %v, want %v", id, err, session.ErrConflict)
			}
		})
	}
	unlock()
	wg.Wait()
	for n := range 30 {
		id := session.ID("sess_" + strconv.Itoa(n))
		want := int64(1)
		if n%3 == 0 {
			want = 0
		}
		if last, err := db.Last(t.Context(), id); err != nil || last != want {
			t.Errorf("%s has %d events, %v; want %d", id, last, err, want)
		}
	}
}

func TestClosing(t *testing.T) {
	dir := t.TempDir()
	db := start(t, storage.Config{Dir: dir})
	accept(t, db, "1")
	unlock := lock(t, dir)
	waits := make(chan error, 1)
	go func() {
		_, err := db.Accept(context.Background(), []pipeline.InboxRow{row("2")})
		waits <- err
	}()
	must(t, db.Close())
	if err := <-waits; !errors.Is(err, storage.ErrClosed) {
		t.Errorf("who waited got %v, want %v", err, storage.ErrClosed)
	}
	unlock()
	if _, err := db.Accept(t.Context(), []pipeline.InboxRow{row("3")}); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("accept: %v, want %v", err, storage.ErrClosed)
	}
	if _, err := db.Blocks(t.Context()); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("blocks: %v, want %v", err, storage.ErrClosed)
	}
	must(t, db.Close())
}

func TestDamagedFileIsRefused(t *testing.T) { // F15
	for _, c := range []struct {
		name   string
		damage func(b []byte) []byte
	}{
		{"header", func(b []byte) []byte { copy(b, "this was a database"); return b }},
		{"no database at all", func([]byte) []byte { return []byte(strings.Repeat("no database. ", 1000)) }},
		{"cut in half", func(b []byte) []byte { return b[:len(b)/2/4096*4096] }},
		{"pages overwritten", func(b []byte) []byte {
			for i := len(b) / 4; i < len(b)*3/4; i++ {
				b[i] ^= 0x5a
			}
			return b
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			db := start(t, storage.Config{Dir: dir})
			for n := range 200 {
				accept(t, db, strconv.Itoa(n))
			}
			must(t, db.Close())
			path := filepath.Join(dir, "trill.db")
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, c.damage(b), 0o600))
			refused(t, storage.Config{Dir: dir}, storage.ErrDamaged)
		})
	}
}

func TestDamageIsFoundByIntegrity(t *testing.T) {
	dir := t.TempDir()
	db := start(t, storage.Config{Dir: dir})
	for n := range 200 {
		accept(t, db, strconv.Itoa(n))
	}
	must(t, db.Integrity(t.Context()))
	must(t, db.Close())
	f, err := os.OpenFile(filepath.Join(dir, "trill.db"), os.O_RDWR, 0)
	must(t, err)
	size, err := f.Seek(0, io.SeekEnd)
	must(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("scribble", 512)), size/4096/2*4096)
	must(t, errors.Join(err, f.Close()))
	reader := open(t, storage.Config{Dir: dir, ReadOnly: true})
	if err := reader.Integrity(t.Context()); !errors.Is(err, storage.ErrDamaged) {
		t.Errorf("integrity: %v, want %v", err, storage.ErrDamaged)
	}
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	must(t, start(t, storage.Config{Dir: dir}).Close())
	_, err := raw(t, dir).Exec(`INSERT INTO schema_version VALUES (999, 0)`)
	must(t, err)
	refused(t, storage.Config{Dir: dir}, storage.ErrNewer)
	refused(t, storage.Config{Dir: dir, ReadOnly: true}, storage.ErrNewer)
}

func TestOlderDatabaseIsNotUpgradedByReading(t *testing.T) {
	dir := t.TempDir()
	must(t, start(t, storage.Config{Dir: dir}).Close())
	_, err := raw(t, dir).Exec(`DELETE FROM schema_version`)
	must(t, err)
	refused(t, storage.Config{Dir: dir, ReadOnly: true}, storage.ErrOlder)
}

func TestFolderThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	refused(t, storage.Config{Dir: filepath.Join(file, "data")}, storage.ErrNotWritable)
	if _, err := storage.Open(t.Context(), storage.Config{Ballast: -1}, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "bot.data_dir") || !strings.Contains(err.Error(), "ballast") {
		t.Errorf("an empty configuration: %v", err)
	}
}

func TestOldDatabaseIsUpgraded(t *testing.T) {
	dir := t.TempDir()
	frozen, err := os.ReadFile(filepath.Join("testdata", "v1.sql"))
	must(t, err)
	pool := raw(t, dir)
	_, err = pool.Exec(string(frozen))
	must(t, errors.Join(err, pool.Close()))

	db := open(t, storage.Config{Dir: dir})
	must(t, db.Integrity(t.Context()))
	faults, err := db.Invariants(t.Context())
	if err != nil || len(faults) != 0 {
		t.Errorf("invariants: %v, %v", faults, err)
	}
	tr, err := db.Trace(t.Context(), "m1")
	must(t, err)
	if len(tr) != 1 || tr[0].Row.Message.Quote.Text != "earlier" || tr[0].Row.Message.Attachments[0].Name != "a.txt" ||
		tr[0].Run.Reason != session.EndAnswered || tr[0].Deliveries[1].RemoteID != "r1" {
		t.Errorf("trace of an old message: %+v", tr)
	}
	evs, err := db.Events(t.Context(), "sess_1", 0, 0)
	must(t, err)
	if len(evs) != 7 || evs[1].Data.(*session.Assistant).Calls[1].ID != "c2" || string(evs[1].Data.(*session.Assistant).Calls[1].Args) != `{"cut` {
		t.Errorf("an old transcript: %+v", evs)
	}
	accept(t, db, "new")
}

// child is a process that accepts messages in dir.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	acked []string
	err   string
}

func startChild(t *testing.T, dir string, wrapper ...string) *child {
	t.Helper()
	argv := append(wrapper, os.Args[0])
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), acceptUntil+"="+dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{cmd: cmd, lines: bufio.NewScanner(out)}
	if !c.next() {
		t.Fatalf("child did not start: %s", c.err)
	}
	return c
}

// next reads one whole line.
func (c *child) next() bool {
	if !c.lines.Scan() {
		return false
	}
	kind, rest, _ := strings.Cut(c.lines.Text(), " ")
	switch kind {
	case "acked":
		c.acked = append(c.acked, rest)
	case "error":
		c.err = rest
	}
	return true
}

func TestNothingAcknowledgedIsLostByAKill(t *testing.T) { // F1
	dir := t.TempDir()
	acked := map[string]bool{}
	for range 12 {
		c := startChild(t, dir)
		for range 1 + rand.IntN(400) {
			c.next()
		}
		must(t, c.cmd.Process.Kill())
		for c.next() {
		}
		_ = c.cmd.Wait() // it was killed
		for _, id := range c.acked {
			acked[strings.TrimSpace(id)] = true
		}
		if c.err != "" {
			t.Fatalf("child: %s", c.err)
		}
	}
	db := open(t, storage.Config{Dir: dir})
	must(t, db.Integrity(t.Context()))
	got := stored(t, db)
	missing := 0
	for id := range acked {
		// The last line may have been cut by the kill.
		if !got[id] && strings.Count(id, "-") == 2 {
			missing++
		}
	}
	if missing > 0 || len(acked) < 100 {
		t.Errorf("%d of %d acknowledged messages are missing", missing, len(acked))
	}
	t.Logf("%d acknowledged, %d stored", len(acked), len(got))
}

func TestNothingIsAcknowledgedAfterAFailedSync(t *testing.T) { // F5
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace to make a sync fail")
	}
	dir := t.TempDir()
	must(t, start(t, storage.Config{Dir: dir}).Close())
	c := startChild(t, dir, strace, "-f", "-o", filepath.Join(t.TempDir(), "strace"),
		"-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=20+")
	for c.next() {
	}
	_ = c.cmd.Wait()
	if !strings.Contains(c.err, storage.ErrBroken.Error()) {
		t.Fatalf("child ended with %q, want %q", c.err, storage.ErrBroken)
	}
	db := open(t, storage.Config{Dir: dir})
	must(t, db.Integrity(t.Context()))
	got := stored(t, db)
	for _, id := range c.acked {
		if !got[id] {
			t.Errorf("message %s was acknowledged and is missing", id)
		}
	}
	if len(c.acked) == 0 {
		t.Error("nothing was acknowledged before the disk failed")
	}
}
