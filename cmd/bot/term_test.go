package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTablesAreAligned(t *testing.T) {
	var b bytes.Buffer
	tab := newTable(&b, "ID", "NAME", "STATE")
	tab.row("1", "Ann", "idle")
	tab.row("22", "日本語", "running")
	tab.row("333")
	if err := tab.flush(); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"ID   NAME    STATE\n" +
		"1    Ann     idle\n" +
		"22   日本語  running\n" +
		"333          \n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	for width, want := range map[int]string{
		0:  "ID  TEXT                       STATE\n1   a rather long text 日本語  done\n",
		30: "ID  TEXT                 STATE\n1   a rather long text…  done\n",
		24: "ID  TEXT           STATE\n1   a rather lon…  done\n",
		5:  "ID  TEXT      STATE\n1   a rathe…  done\n",
	} {
		var b bytes.Buffer
		tab := newTable(&b, "ID", "TEXT", "STATE")
		tab.width = width
		tab.row("1", "a rather long text 日本語", "done")
		if err := tab.flush(); err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("width %d: got\n%s\nwant\n%s", width, b.String(), want)
		}
	}
}

func TestTextOfStrangersCannotSteerTheTerminal(t *testing.T) {
	var b bytes.Buffer
	tab := newTable(&b, "TEXT", "X")
	tab.palette = true
	tab.tint = func(header, cell string) colour {
		if header == "X" {
			return red
		}
		return ""
	}
	tab.row("a\x1b[2Jb\r\nc\u202ed\u009b31m👩\u200d💻\xff", "x")
	if err := tab.flush(); err != nil {
		t.Fatal(err)
	}
	_, row, _ := strings.Cut(b.String(), "\n")
	want := "a\ufffd[2Jb  c\ufffdd\ufffd31m👩\u200d💻\ufffd  \x1b[31mx\x1b[0m\n"
	if row != want {
		t.Errorf("got  %q\nwant %q", row, want)
	}
}

func TestColoursAreOffWhereNobodySeesThem(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range []palette{newPalette(f), newPalette(new(bytes.Buffer))} {
		if got := p.paint(red, "x"); got != "x" {
			t.Errorf("painted %q", got)
		}
	}
	if got := palette(true).paint(green, "x"); got != "\x1b[32mx\x1b[0m" {
		t.Errorf("painted %q", got)
	}
}

func TestSpinnerIsSilentWhenNobodyLooks(t *testing.T) {
	var b bytes.Buffer
	stop := newSpinner(&b, "working")
	stop()
	stop()
	if b.Len() > 0 {
		t.Errorf("wrote %q", b.String())
	}
}

func TestSpinner(t *testing.T) {
	for after, want := range map[time.Duration]string{
		0:                      "",
		250 * time.Millisecond: "\r⠋ working\r⠙ working\r\x1b[K",
	} {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			stop := spin(&b, "working")
			time.Sleep(after)
			stop()
			stop()
			if b.String() != want {
				t.Errorf("after %v: %q, want %q", after, b.String(), want)
			}
		})
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := printJSON(&b, map[string]any{"text": "a < b & c"}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"text\": \"a < b & c\"\n}\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	if err := printJSON(brokenWriter{}, 1); err == nil {
		t.Error("a failed write is no error")
	}
	if err := newTable(brokenWriter{}, "A").flush(); err == nil {
		t.Error("a failed write of a table is no error")
	}
}

func TestAges(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "now", 0: "now", 999 * time.Millisecond: "now", 42 * time.Second: "42s", 59*time.Minute + 59*time.Second: "59m",
		47 * time.Hour: "47h", 49 * time.Hour: "2d", 1000 * 24 * time.Hour: "1000d",
	} {
		if got := age(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1536: "1.5 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 25_000_000: "25.0 MB",
		1 << 40: "1.1 TB", 1<<63 - 1: "9223.4 PB",
	} {
		if got := size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
