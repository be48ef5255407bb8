package permission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"trill/engine/tool"
)

const (
	allow = tool.Allow
	ask   = tool.Ask
	deny  = tool.Deny
)

func newPolicy(t testing.TB, mode string, rules ...Rule) *Policy {
	t.Helper()
	p, err := New(Config{Mode: mode, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func callOf(name string, args any) tool.Call {
	data, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	readOnly := name == "read_file" || name == "list_dir" || name == "search"
	return tool.Call{ID: "1", Spec: tool.Spec{Name: name, ReadOnly: readOnly}, Args: data, Person: "cloud:users/alice", Role: "member", Channel: "cloud"}
}

func shellCall(line string) tool.Call {
	return callOf("shell", map[string]any{"command": line})
}

func shellRule(d tool.Decision, when string) Rule {
	return Rule{Tool: "shell", When: when, Decision: d}
}

// teamRules are what a careful operator may write.
func teamRules() []Rule {
	return []Rule{
		shellRule(deny, "rm*"),
		shellRule(deny, "git push*"),
		{Tool: "write_file", When: "secrets", Decision: deny},
		{Tool: "read_file", When: "*.env", Decision: deny},
		shellRule(ask, "git log --author*"),
		shellRule(allow, "git status*"),
		shellRule(allow, "git log*"),
		shellRule(allow, "git diff *"),
		shellRule(allow, "git branch*"),
		shellRule(allow, "git remote*"),
		shellRule(allow, "git tag*"),
		shellRule(allow, "git -C sub status*"),
		shellRule(allow, "ls*"),
		shellRule(allow, "cat *"),
		shellRule(allow, "echo *"),
		shellRule(allow, "wc*"),
		shellRule(allow, "grep *"),
		shellRule(allow, "find *"),
		shellRule(allow, "find * -exec wc *"),
		shellRule(allow, "rg *"),
		shellRule(allow, "sed *"),
		shellRule(allow, "awk *"),
		shellRule(allow, "sort*"),
		shellRule(allow, "tar *"),
		shellRule(allow, "tee *"),
		shellRule(allow, "env*"),
		shellRule(allow, "xargs *"),
		shellRule(allow, "xargs wc *"),
		shellRule(allow, "timeout * go test *"),
		shellRule(allow, "sh *"),
		shellRule(allow, "python3 *"),
		shellRule(allow, "eval *"),
		shellRule(allow, "go test *"),
		shellRule(allow, "make test"),
		shellRule(allow, "true"),
		{Tool: "write_file", When: "out/*", Decision: allow},
	}
}

func TestCommandLinesOfATeam(t *testing.T) {
	p := newPolicy(t, "", teamRules()...)
	tests := []struct {
		line string
		want tool.Decision
	}{
		// What the rules say.
		{"git status", allow},
		{"git status --short", allow},
		{"  git   status  ", allow},
		{`git "status"`, allow},
		{`g"it" sta\tus`, allow},
		{"git log --oneline -5", allow},
		{"git log --author=bob", ask},
		{"ls", allow},
		{"ls -la /tmp", allow},
		{"lsof", ask},
		{"git logger", ask},
		{"git stash", ask},
		{"make test", allow},
		{"make test SHELL=/tmp/x", ask},
		{"make tests", ask},
		{"/bin/ls", ask},
		{"", allow},
		{"# only words", allow},

		// Every part counts.
		{"git status && ls", allow},
		{"git status; ls | wc -l", allow},
		{"ls || true", allow},
		{"set -euo pipefail; ls", allow},
		{"ls; touch x", ask},
		{"ls && rm x", deny},
		{"ls || rm x", deny},
		{"ls | rm x", deny},
		{"ls & rm x", deny},
		{"ls\nrm x", deny},
		{"(ls; rm x)", deny},
		{"{ ls; rm x; }", deny},
		{"if ls; then rm x; fi", deny},
		{"while ls; do wc -l; done", allow},
		{"for f in a b; do rm $f; done", deny},
		{"case x in y) rm x;; esac", deny},
		{"echo $(git status)", allow},
		{"echo $(rm x)", deny},
		{"echo `rm x`", deny},
		{`echo "$(rm x)"`, deny},
		{"echo '$(rm x)'", allow},
		{"echo ${x:-$(rm x)}", deny},
		{"x=$(rm x)", deny},
		{"x=$(ls)", allow},
		{"! rm x", deny},
		{"cat <<E\n$(rm x)\nE", deny},
		{"cat <<'E'\n$(rm x)\nE", ask}, // cat alone is not "cat *"
		{"cat - <<'E'\n$(rm x)\nE", allow},
		{"cat - <<E\nhello\nE", allow},

		// Files that are written and read.
		{"ls > x", ask},
		{"ls >> x", ask},
		{"ls > /dev/null 2>&1", allow},
		{"ls 2> /dev/null >&2", allow},
		{"ls > out/x", allow},
		{"ls > ./out/../out/x", allow},
		{"ls > out/../x", ask},
		{"ls > secrets/key", deny},
		{"ls > ./secrets/key", deny},
		{"ls > $f", ask},
		{"ls >& x", ask},
		{"ls &> x", ask},
		{"ls >| x", ask},
		{"ls <> x", ask},
		{"wc < README.md", allow},
		{"wc < prod.env", deny},
		{"wc < /dev/tcp/example.org/80", ask},
		{"ls | tee x", ask},
		{"ls | tee out/x", allow}, // by the rules for tee and for the folder
		{"ls | tee secrets/x", deny},
		{"cd out; ls > out/x", ask},

		// What shows only when it runs.
		{"$CMD x", ask},
		{"$(ls) x", ask},
		{"l? x", ask},
		{"{ls,-l}", ask},
		{"~/ls", ask},
		{"eval ls", ask},
		{"eval rm x", deny},
		{"eval 'rm x'", deny},
		{"eval $x", ask},
		{"source x", ask},
		{". x", ask},
		{"exec ls", ask},
		{"exec rm x", deny},
		{"alias ls=x", ask},
		{"trap 'rm x' EXIT", deny},
		{"ls() { true; }; ls", ask},
		{"ls() { rm x; }; ls", deny},
		{"export PATH=/tmp; ls", ask},
		{"PATH=/tmp ls", ask},
		{"LD_PRELOAD=x ls", ask},
		{"IFS=x; ls", ask},
		{"BASH_ENV=x ls", ask},
		{"GIT_PAGER=x git log", ask},
		{"FOO=1 ls", ask},
		{"LC_ALL=C ls", allow},
		{"x=1; ls", allow},
		{"diff <(ls) x", ask},
		{"cat <(rm x)", deny},
		{"git log $x", ask},
		{`git log "$x"`, ask},
		{"ls $x", allow},
		{"echo $((1 + 2))", allow},
		{"echo $((x + 2))", ask},
		{"echo ${x@P}", ask},
		{"echo ${x[y]}", ask},
		{"[[ -f x ]]", ask},
		{"((x))", ask},
		{"echo $'a\\'; rm x; '", deny}, // sh ends the quote earlier
		{"ls |", ask},
		{"rm x |", deny},
		{"wc < prod.env |", deny},
		{"ls\x00", ask},
		{"ls\r\nrm x", deny},
		{`ls "`, ask},
		{`r"m" x; ls "`, deny},

		// A deny sees through.
		{"/bin/rm x", deny},
		{"./rm x", deny},
		{`\rm x`, deny},
		{`"r"m x`, deny},
		{"r''m x", deny},
		{"$'rm' x", deny},
		{"{rm,-rf,x}", deny},
		{"env rm x", deny},
		{"env -i A=1 rm x", deny},
		{"env -S 'rm x'", deny},
		{"FOO=1 rm x", deny},
		{"sudo rm x", deny},
		{"sudo -u root -- rm x", deny},
		{"nice -n 5 rm x", deny},
		{"nice -5 rm x", deny},
		{"timeout -k 5 10 rm x", deny},
		{"timeout 10 timeout 10 rm x", deny},
		{"nohup rm x", deny},
		{"busybox rm x", deny},
		{"ls | xargs -n 1 rm", deny},
		{"ls | xargs rm -f", deny},
		{"sh -c 'rm x'", deny},
		{"bash -lc 'ls; rm x'", deny},
		{"sh -c 'sh -c \"rm x\"'", deny},
		{"command rm x", deny},
		{"builtin rm x", deny},
		{"time rm x", deny},
		{"find . -exec rm {} ;", deny},
		{`find . -name x -exec rm {} \;`, deny},
		{"find . -exec sh -c 'rm x' ;", deny},
		{"git -C x push", deny},
		{"git -c a=b --no-pager push", deny},
		{"timeout 5 grep rm x", ask},
		{"ls | xargs -n1 grep rm", ask},
		{"echo rm", allow},
		{"rmdir x", deny},
		{"su - bob -c 'rm x'", deny},
		{"xargs -I{} sh -c 'rm {}'", deny},
		{"bash <<< 'rm x'", deny},
		{"cat - <<'E' | sh\nrm x\nE", ask},
		{"coproc rm x", deny},
		{"for PATH in a; do ls; done", ask},
		{"time ls", allow},
		{"time -p rm x", deny},

		// Options that write or run.
		{"find . -name '*.go'", allow},
		{"find . -delete", ask},
		{"find . -fprint x", ask},
		{"find . -ok touch {} ;", ask},
		{"find . -exec wc -l {} ;", allow},
		{"find . -exec wc {} ; -exec touch x ;", ask},
		{"find . -exec wc {} ; -delete", ask},
		{"rg foo", allow},
		{"rg --pre x foo", ask},
		{"git -c core.pager=x status", ask},
		{"git -C sub status", allow},
		{"git -C other status", ask},
		{"git branch", allow},
		{"git branch -D x", ask},
		{"git branch -d x", ask},
		{"git branch -m x y", ask},
		{"git tag -d v1", ask},
		{"git remote -v", allow},
		{"git remote add x y", ask},
		{"git remote set-url x y", ask},
		{"git diff --stat", allow},
		{"git diff --ext-diff", ask},
		{"git diff --output=x", ask},
		{"git diff --outp x", ask},
		{"git log --output x", ask},
		{"sed -n 1,20p x", allow},
		{"sed 's/a/b/g' x", allow},
		{"sed -i s/a/b/ x", ask},
		{"sed -ni p x", ask},
		{"sed 's/a/b/w x' y", ask},
		{"sed 's/a/b/e' y", ask},
		{"sed '1e rm' y", ask},
		{"sed -e p -e 'w x' y", ask},
		{"sed -n '/a/p' x", allow},
		{"sort x", allow},
		{"sort -o y x", ask},
		{"sort -ro y x", ask},
		{"sort --outp=y x", ask},
		{"sort *", ask},
		{"ls *", allow},
		{"cat src/{a,b}.go ~/x", allow},
		{"awk '{print $1}' x", allow},
		{`awk 'BEGIN { system("x") }'`, ask},
		{`awk '{ print > "x" }' y`, ask},
		{"tar tf x.tar", allow},
		{"tar xf x.tar --to-command=y", ask},
		{"env", allow},
		{"env ls", ask},
		{"ls | xargs wc -l", allow},
		{"ls | xargs touch", ask},
		{"timeout 60 go test ./...", allow},
		{"timeout 60 go vet ./...", ask},
		{"go test ./...", allow},
		{"go test -exec x ./...", ask},
		{"sh -c ls", ask},
		{"sh x.sh", ask},
		{"ls | sh", ask},
		{"python3 x.py", allow},
		{"python3 -c 'x'", ask},
		{"python3 - <<E\nx\nE", ask},
	}
	for _, tt := range tests {
		if got := p.Judge(t.Context(), shellCall(tt.line)); got.Decision != tt.want {
			t.Errorf("%q: %s (%s), want %s", tt.line, got.Decision, got.Reason, tt.want)
			for _, part := range p.Explain(shellCall(tt.line)) {
				t.Logf("    %+v", part)
			}
		}
	}
}

func TestRulesForAllCommands(t *testing.T) {
	tests := []struct {
		name  string
		mode  string
		rules []Rule
		line  string
		want  tool.Decision
	}{
		{"a star allows what cannot be read", "", []Rule{shellRule(allow, "*")}, "eval $x > $y", allow},
		{"so does a rule without when", "", []Rule{shellRule(allow, "")}, "$x | sh", allow},
		{"a line that does not parse", "", []Rule{shellRule(allow, "*")}, "ls |", allow},
		{"but not what a deny may be meant for", "", []Rule{shellRule(allow, "*"), shellRule(deny, "rm*")}, "$x", ask},
		{"nor an ask before it", "", []Rule{shellRule(ask, "rm*"), shellRule(allow, "*")}, "$x", ask},
		{"an ask after it does not count", "", []Rule{shellRule(allow, "*"), shellRule(ask, "rm*")}, "$x", allow},
		{"arguments of another program", "", []Rule{shellRule(allow, "*"), shellRule(deny, "rm*")}, "touch $x", allow},
		{"arguments of that program", "", []Rule{shellRule(allow, "*"), shellRule(deny, "git push*")}, "git $x", ask},
		{"text that can be read", "", []Rule{shellRule(allow, "*"), shellRule(deny, "rm*")}, "sh -c 'touch x'", allow},
		{"text that cannot", "", []Rule{shellRule(allow, "*"), shellRule(deny, "rm*")}, `sh -c "$x"`, ask},
		{"mode allow", "allow", nil, "touch x", allow},
		{"mode allow with a deny", "allow", []Rule{shellRule(deny, "rm*")}, "touch x; rm x", deny},
		{"mode allow and a program nobody knows", "allow", nil, "$x", ask},
		{"mode allow and arguments nobody knows", "allow", nil, "touch $x", allow},
		{"mode deny", "deny", nil, "touch x", deny},
		{"mode deny with an allow", "deny", []Rule{shellRule(allow, "touch *")}, "touch x", allow},
		{"mode deny and what cannot be read", "deny", nil, "$x", deny},
		{"a deny after an allow", "", []Rule{shellRule(allow, "*"), shellRule(deny, "")}, "ls", deny},
		{"the first of two", "", []Rule{shellRule(ask, "ls*"), shellRule(allow, "ls*")}, "ls", ask},
		{"a redirect by its own rule", "", []Rule{shellRule(allow, "ls"), shellRule(allow, "> log/*")}, "ls > log/x", allow},
		{"a rule for no particular tool", "", []Rule{{Decision: allow}}, "ls > x", allow},
		{"a program without arguments is denied with them", "", []Rule{shellRule(allow, "*"), shellRule(deny, "curl")}, "curl x", deny},
		{"an exact rule names its options", "", []Rule{shellRule(allow, "sort -o y x")}, "sort -o y x", allow},
		{"a rule that names the option", "", []Rule{shellRule(allow, "git diff --output=/tmp/*")}, "git diff --output=/tmp/x", allow},
		{"a file after a change of folder", "", []Rule{shellRule(allow, "cd *"), shellRule(allow, "ls*"), {Tool: "write_file", When: "out/*", Decision: allow}}, "cd x; ls > out/x", ask},
		{"or before one, as it may be in a loop", "", []Rule{shellRule(allow, "cd *"), shellRule(allow, "ls*"), {Tool: "write_file", When: "out/*", Decision: allow}}, "ls > out/x; cd x", ask},
		{"a file by the end of its name", "", []Rule{shellRule(allow, "ls*"), {Tool: "write_file", When: "*.md", Decision: allow}}, "ls > x.md", allow},
		{"a file outside of the workspace", "", []Rule{shellRule(allow, "ls*"), {Tool: "write_file", When: "*.md", Decision: allow}}, "ls > /x.md", ask},
		{"a file above it", "", []Rule{shellRule(allow, "ls*"), {Tool: "write_file", Decision: allow}}, "ls > ../x.md", ask},
		{"and the option twice", "", []Rule{shellRule(allow, "git diff --output=/tmp/*")}, "git diff --output=/tmp/x --output=y", ask},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPolicy(t, tt.mode, tt.rules...)
			if got := p.Judge(t.Context(), shellCall(tt.line)); got.Decision != tt.want {
				t.Errorf("%q: %s (%s), want %s", tt.line, got.Decision, got.Reason, tt.want)
			}
		})
	}
}

func TestOtherTools(t *testing.T) {
	rules := []Rule{
		{Tool: "*", When: "secrets", Decision: deny},
		{Tool: "write_file", When: "docs/*.md", Decision: allow},
		{Tool: "*_file", When: "private/*", Decision: ask},
		{Tool: "write_file", When: "*.txt", Decision: allow},
		{Tool: "mcp_delete*", Decision: deny},
		{Tool: "mcp_mail", When: "*@evil.example*", Decision: deny},
		{Tool: "mcp_mail", Role: "operator", Decision: allow},
		{Tool: "mcp_mail", Person: "cloud:users/bob", Decision: allow},
		{Channel: "lab", Operation: "set", Decision: allow},
	}
	p := newPolicy(t, "", rules...)
	mail := callOf("mcp_mail", map[string]any{"to": []string{"a@ours.example"}})
	with := func(c tool.Call, change func(*tool.Call)) tool.Call {
		change(&c)
		return c
	}
	tests := []struct {
		name string
		call tool.Call
		want tool.Decision
	}{
		{"reading is allowed", callOf("read_file", map[string]any{"path": "x"}), allow},
		{"writing asks", callOf("write_file", map[string]any{"path": "x"}), ask},
		{"a rule for a path", callOf("write_file", map[string]any{"path": "./docs//a/b.md"}), allow},
		{"a path that leaves it", callOf("write_file", map[string]any{"path": "docs/../b.md"}), ask},
		{"a path that leaves the workspace", callOf("write_file", map[string]any{"path": "../docs/b.md"}), ask},
		{"an absolute path", callOf("write_file", map[string]any{"path": "/docs/b.md"}), ask},
		{"a file by the end of its name", callOf("write_file", map[string]any{"path": "a/b.txt"}), allow},
		{"the same elsewhere", callOf("write_file", map[string]any{"path": "/a/b.txt"}), ask},
		{"and above", callOf("write_file", map[string]any{"path": "a/../../b.txt"}), ask},
		{"a folder that is denied", callOf("read_file", map[string]any{"path": "secrets/x"}), deny},
		{"by another way", callOf("read_file", map[string]any{"path": "a/.././secrets/x"}), deny},
		{"from the root", callOf("read_file", map[string]any{"path": "/secrets/x"}), deny},
		{"the folder itself", callOf("list_dir", map[string]any{"path": "secrets/"}), deny},
		{"a name that begins like it", callOf("list_dir", map[string]any{"path": "secretary"}), allow},
		{"reading can be asked for", callOf("read_file", map[string]any{"path": "private/x"}), ask},
		{"no path is the workspace", callOf("search", map[string]any{"pattern": "x"}), allow},
		{"a tool by its name", callOf("mcp_delete_all", nil), deny},
		{"an unknown tool asks", callOf("mcp_other", map[string]any{"x": 1}), ask},
		{"arguments", callOf("mcp_mail", map[string]any{"to": []any{map[string]any{"x": "a@evil.example"}}}), deny},
		{"a member", mail, ask},
		{"an operator", with(mail, func(c *tool.Call) { c.Role = "operator" }), allow},
		{"a person", with(mail, func(c *tool.Call) { c.Person = "cloud:users/bob" }), allow},
		{"a channel", with(mail, func(c *tool.Call) { c.Channel = "lab" }), allow},
		{"a guest may read", with(callOf("read_file", map[string]any{"path": "x"}), func(c *tool.Call) { c.Role = "guest" }), allow},
		{"a guest may not write", with(mail, func(c *tool.Call) { c.Role, c.Channel = "guest", "lab" }), deny},
		{"a guest has no shell", with(shellCall("true"), func(c *tool.Call) { c.Role = "guest" }), deny},
		{"no JSON", with(shellCall(""), func(c *tool.Call) { c.Args = json.RawMessage(`{"command":`) }), deny},
		{"no text", with(shellCall(""), func(c *tool.Call) { c.Args = json.RawMessage(`{"command":["ls"]}`) }), deny},
		{"twice", with(shellCall(""), func(c *tool.Call) { c.Args = json.RawMessage(`{"command":"true","Command":"rm x"}`) }), deny},
		{"more after it", with(shellCall(""), func(c *tool.Call) { c.Args = json.RawMessage(`{"command":"true"} {}`) }), deny},
		{"another spelling", with(shellCall(""), func(c *tool.Call) { c.Args = json.RawMessage(`{"COMMAND":"rm x"}`) }), deny},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := p.Judge(t.Context(), tt.call); got.Decision != tt.want {
				t.Errorf("%s (%s), want %s", got.Decision, got.Reason, tt.want)
			}
		})
	}
}

func TestReasonsNameTheRule(t *testing.T) {
	p := newPolicy(t, "", shellRule(deny, "rm*"), shellRule(allow, "git status*"), shellRule(allow, "ls*"))
	long := strings.Repeat("x", 5000)
	tests := []struct{ line, want string }{
		{"git status", "rule 2 (shell `git status*`) allows"},
		{"rm x", "rule 1 (shell `rm*`) denies"},
		{"touch x", "it changes something and no rule allows it"},
		{"ls; rm -rf x", "`rm -rf x`: rule 1 (shell `rm*`) denies"},
		{"ls; git status", "each of its 2 parts is allowed"},
		{"ls; touch `ls`\u202e@all\x1b[31m", "`touch $(…)?@all [31m`: its arguments show only when it runs"},
		{"ls; touch " + long, "`touch " + long[:54] + "…`: it changes something and no rule allows it"},
		{"eval x", "it runs text that is not judged as a command"},
	}
	for _, tt := range tests {
		if got := p.Judge(t.Context(), shellCall(tt.line)).Reason; got != tt.want {
			t.Errorf("%.40q:\n got %s\nwant %s", tt.line, got, tt.want)
		}
	}
}

func TestExplainTellsAboutEachPart(t *testing.T) {
	p := newPolicy(t, "", shellRule(deny, "rm*"), shellRule(allow, "ls*"))
	got := p.Explain(shellCall("ls > x && rm y || true"))
	want := []Part{
		{"> x", ask, "it changes something and no rule allows it"},
		{"ls", allow, "rule 2 (shell `ls*`) allows"},
		{"rm y", deny, "rule 1 (shell `rm*`) denies"},
		{"true", allow, "it does nothing by itself"},
	}
	less := func(a, b Part) int { return strings.Compare(a.Text, b.Text) }
	if d := cmp.Diff(sorted(want, less), sorted(got, less)); d != "" {
		t.Error(d)
	}
}

func sorted(parts []Part, less func(a, b Part) int) []Part {
	out := append([]Part(nil), parts...)
	for i := range out {
		for j := i; j > 0 && less(out[j], out[j-1]) < 0; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}

func TestConfigTellsAllItsFaults(t *testing.T) {
	_, err := New(Config{Mode: "yes", Rules: []Rule{
		{Decision: allow},
		{Decision: "maybe", Operation: "read"},
		{When: strings.Repeat("x", 2000)},
	}})
	want := `mode: "yes" is none of allow, ask, deny
rule 2: decision: "maybe" is none of allow, ask, deny
rule 2: operation: "read" is none of get, set
rule 3: decision: is missing; use allow, ask or deny
rule 3: when: is longer than 1000 bytes`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestMoreIsNeverMorePermitted adds commands and files to lines.
func TestMoreIsNeverMorePermitted(t *testing.T) {
	policies := []*Policy{
		newPolicy(t, "", teamRules()...),
		newPolicy(t, "allow", shellRule(deny, "rm*"), shellRule(ask, "git*")),
		newPolicy(t, "deny", shellRule(allow, "ls*"), shellRule(ask, "*"), shellRule(deny, "*push*")),
		newPolicy(t, "", shellRule(ask, "git log*"), shellRule(allow, "*"), shellRule(deny, "git push*")),
	}
	atom := rapid.SampledFrom([]string{
		"ls", "ls -l", "git status", "git log", "rm x", "git push", "touch x", "true", "echo hi", "echo $x", "$x", "eval ls", "x=1",
		"PATH=x", "FOO=1 ls", "sh -c 'rm x'", "sh -c ls", "env rm x", "timeout 5 go test ./...", "find . -exec wc {} +", "find . -delete",
		"ls > out/x", "ls > x", "wc < a.env", "cat - < b", "cd out", "[[ -f x ]]", "f() { ls; }", "export A=1", "git branch -D x",
		"sed -n p x", "git -C x push", "'rm' x", "{rm,x}", "ls {a,b}", "ls *", "diff <(ls) x", "echo $'x'", "set -e", "exit 1", ": $x",
	})
	line := rapid.Custom(func(t *rapid.T) string {
		s := atom.Draw(t, "command")
		for range rapid.IntRange(0, 2).Draw(t, "more") {
			next := atom.Draw(t, "command")
			switch rapid.IntRange(0, 5).Draw(t, "shape") {
			case 0:
				s += "; " + next
			case 1:
				s += " && " + next
			case 2:
				s += " | " + next
			case 3:
				s = "if " + s + "; then " + next + "; fi"
			case 4:
				s = "(" + s + ")\n" + next
			case 5:
				s = "for i in a b; do " + s + "; done; " + next
			}
		}
		return s
	})
	rapid.Check(t, func(rt *rapid.T) {
		base, more := line.Draw(rt, "line"), line.Draw(rt, "added")
		longer := rapid.SampledFrom([]string{
			"%s ; %s", "%s && %s", "%s || %s", "%s | %s", "%s & %s", "%s\n%s", "%s $(%s)", "%s `%s`", "%s \"$(%s)\"", "%s > f", "%s > out/f",
			"%s >> $f", "%s < f", "%s 2>&1", "%s |", "%s )", "%s &",
		}).Draw(rt, "how")
		if strings.Count(longer, "%s") == 2 {
			longer = fmt.Sprintf(longer, base, more)
		} else {
			longer = fmt.Sprintf(longer, base)
		}
		for i, p := range policies {
			a, b := p.Judge(t.Context(), shellCall(base)), p.Judge(t.Context(), shellCall(longer))
			if strictness(b.Decision) < strictness(a.Decision) {
				rt.Fatalf("policy %d: %q is %s (%s), but %q is %s (%s)", i, base, a.Decision, a.Reason, longer, b.Decision, b.Reason)
			}
		}
	})
}

func TestHugeLinesAreAsked(t *testing.T) {
	p := newPolicy(t, "", append(teamRules(), shellRule(deny, "*x*y*z*"), shellRule(allow, "ls*"))...)
	for _, unit := range []string{
		"(", "$(", "`", "{ ", "if ", "[[ ( ", "ls;", "ls>a;", "env ", "sudo -x ", "find -exec ", "sh -c ", "sh -c 'ls';", "eval ", "${a:-", "((",
		"ls $(", "\"$(", "<<a\n", "a[", "$[", "git -c x ", "sort -o ", "x", "ls\n", "|", "timeout 5 ", "{a,", "<(", "find . -exec wc {} ; ", "\x00", "\xff",
		"xy", "$'\\", "f()",
	} {
		line := strings.Repeat(unit, maxLine/len(unit))
		if got := p.Judge(t.Context(), shellCall(line)); got.Decision == allow || len(got.Reason) > 400 {
			t.Errorf("%q over and over: %s (%s)", unit, got.Decision, got.Reason)
		}
	}
	if got := p.Judge(t.Context(), shellCall("ls "+strings.Repeat("x", maxLine))); got.Decision != ask {
		t.Errorf("a line that is too long: %s (%s)", got.Decision, got.Reason)
	}
}

func FuzzJudge(f *testing.F) {
	for _, s := range []string{
		"ls", "rm x", "a && b | c > d", "cat <<E\n$(x)\nE", "eval \"$x\"", "sh -c 'a; b'", "find . -exec a {} \\;", "git -c a=b log", "$'\\x41'",
		"{a,b} [c] ~d", "sed -e s/a/b/ -i", "x=(1 2)", "a() { b; }", "${x@P}", "((1+1))", "awk 'x|y'", "xargs -I{} sh -c {}", "tee -", "a >&-",
	} {
		f.Add(s)
	}
	p := newPolicy(f, "", teamRules()...)
	strict := newPolicy(f, "", append(teamRules(), shellRule(deny, "*a*"))...)
	f.Fuzz(func(t *testing.T, line string) {
		got, stricter := p.Judge(t.Context(), shellCall(line)), strict.Judge(t.Context(), shellCall(line))
		if got.Reason == "" || len(got.Reason) > 2000 {
			t.Errorf("%+v", got)
		}
		if strictness(stricter.Decision) < strictness(got.Decision) {
			t.Errorf("%s (%s), and with one more deny %s (%s)", got.Decision, got.Reason, stricter.Decision, stricter.Reason)
		}
		for _, part := range p.Explain(shellCall(line)) {
			if strings.ContainsAny(part.Text+part.Reason, "\n\r\x1b\x00") {
				t.Errorf("not fit to be shown: %+q", part)
			}
		}
	})
}

func BenchmarkJudge(b *testing.B) {
	p := newPolicy(b, "", teamRules()...)
	for _, line := range []string{"git status", "cd x && go test ./... 2>&1 | tail -20; ls > out/x"} {
		b.Run(fmt.Sprint(len(line)), func(b *testing.B) {
			call := shellCall(line)
			for b.Loop() {
				p.Judge(b.Context(), call)
			}
		})
	}
}
