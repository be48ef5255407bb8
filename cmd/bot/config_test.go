package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"trill/adapters"
	"trill/adapters/nextcloudtalk"
	"trill/pipeline"
)

const exampleEnv = "OPENAI_API_KEY=sk-0123456789\nTALK_SECRET=0123456789012345678901234567890123456789012345678901234567890123\n"

func readExample(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../config.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// writeConfig writes a trill.toml that only its owner can read.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trill.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExampleWorksAsItIs(t *testing.T) {
	path := writeConfig(t, readExample(t))
	c, warnings, err := loadConfig(path, environment(exampleEnv), talk())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		t.Errorf("warning: %s", w)
	}
	want := defaultConfig()
	want.File = path
	want.Bot.DataDir = filepath.Join(filepath.Dir(path), "data")
	want.Engine.Workspace = filepath.Join(want.Bot.DataDir, "workspaces")
	want.Models = map[string]Model{"default": {Provider: "openai", APIKey: "sk-0123456789", Model: "gpt-5-mini"}}
	want.Access.Grant = []Grant{{Who: "cloud:users/alice", Role: pipeline.RoleAdmin}}
	want.Channels = map[string]Channel{"cloud": {Platform: nextcloudtalk.Platform, Ambiguous: "resend", Sessions: "room", Settings: &nextcloudtalk.Config{
		URL: "https://cloud.example.com", Secret: adapters.Secret(strings.Repeat("0123456789", 6) + "0123"),
	}}}
	if diff := cmp.Diff(want, c, cmpopts.IgnoreFields(Config{}, "Borrowed")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

var commentedOut = regexp.MustCompile(`(?m)^#(\[|[a-z_]+ = )`)

// TestExampleNamesEveryKey uncomments everything in the example. It has to be
// right, has to have every key that there is, and where the key was commented
// out it has to have its default.
func TestExampleNamesEveryKey(t *testing.T) {
	text := commentedOut.ReplaceAllString(readExample(t), "$1")
	text = strings.ReplaceAll(text, "/srv/website", filepath.ToSlash(t.TempDir()))
	path := writeConfig(t, text)
	c, _, err := loadConfig(path, environment(exampleEnv), talk())
	if err != nil {
		t.Fatal(err)
	}

	known := map[string][]string{}
	schema("[]", "", talk(), known, reflect.ValueOf(new(Config)).Elem())
	doc := parseDocument([]byte(text))
	for header, keys := range known {
		path := strings.Trim(header, "[]")
		for kind, name := range map[string]string{"models": "default", "projects": "website", "channels": "cloud"} {
			path = strings.Replace(path, kind+".NAME", kind+"."+name, 1)
		}
		table := doc.root
		if path != "" {
			table = doc.find(path)
		}
		if len(table.items) > 0 {
			table = table.items[0]
		}
		for _, key := range keys {
			if table.kids[key] == nil {
				t.Errorf("%s has no %s", header, key)
			}
		}
	}
	if len(known) < 12 {
		t.Errorf("only %d tables are known", len(known))
	}

	// What is left when everything that has no default is taken away.
	c.Models, c.Projects, c.Channels = nil, nil, nil
	c.Access.Grant, c.Engine.Permissions.Rule = nil, nil
	want := defaultConfig()
	want.Bot.DataDir = filepath.Join(filepath.Dir(path), "data")
	want.Engine.Workspace = filepath.Join(want.Bot.DataDir, "workspaces")
	if diff := cmp.Diff(want, c, cmpopts.IgnoreFields(Config{}, "File", "Warnings", "Borrowed")); diff != "" {
		t.Errorf("the example shows other defaults than there are; -want +got:\n%s", diff)
	}
}

func TestExampleExplainsEveryKey(t *testing.T) {
	lines := strings.Split(readExample(t), "\n")
	key := regexp.MustCompile(`^#?[a-z_]+ = `)
	header := regexp.MustCompile(`^#?\[`)
	for i, line := range lines {
		if !key.MatchString(line) {
			continue
		}
		above := i - 1 // past the keys that share a comment
		for key.MatchString(lines[above]) || header.MatchString(lines[above]) {
			above--
		}
		if !strings.HasPrefix(lines[above], "# ") {
			t.Errorf("line %d: %s has no comment", i+1, line)
		}
	}
}

func TestPathsStartWhereTheFileIs(t *testing.T) {
	path := writeConfig(t, `
[bot]
data_dir = "../state"
[engine]
workspace = "/somewhere/else"
[models.default]
provider = "offline"
[models.other]
provider = "openai"
model = "m"
api_key = "file:keys/openai.txt"
[projects.site]
path = "site"
[server]
public_url = "https://trill.example.com/"
`)
	dir := filepath.Dir(path)
	for _, d := range []string{"keys", "site"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "keys", "openai.txt"), []byte(" sk-with-spaces \r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	c, _, err := loadConfig(path, noEnv, talk())
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]string{
		"data_dir":   {c.Bot.DataDir, filepath.Join(filepath.Dir(dir), "state")},
		"workspace":  {c.Engine.Workspace, "/somewhere/else"},
		"project":    {c.Projects["site"].Path, filepath.Join(dir, "site")},
		"key":        {c.Models["other"].APIKey.Reveal(), " sk-with-spaces "},
		"public_url": {c.Server.PublicURL, "https://trill.example.com"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s = %q, want %q", what, pair[0], pair[1])
		}
	}
}

func TestSingleFaults(t *testing.T) {
	const base = "[models.default]\nprovider = \"offline\"\n"
	for name, c := range map[string]struct{ text, want string }{
		"listen without port":    {"[server]\nlisten = \"localhost\"", "server.listen: must be an address and a port"},
		"listen with a bad port": {"[server]\nlisten = \":99999\"", "server.listen: must be an address and a port"},
		"listen as a URL":        {"[server]\nlisten = \"http://:80\"", "server.listen: must be an address and a port"},
		"trigger of two words":   {"[bot]\ntrigger = \"hey trill\"", "bot.trigger: must be one word"},
		"empty trigger":          {"[bot]\ntrigger = \"\"", "bot.trigger: must be one word"},
		"trigger with a space":   {"[bot]\ntrigger = \" trill\"", "bot.trigger: must be one word"},
		"empty name":             {"[bot]\nname = \" \"", "bot.name: must not be empty"},
		"empty data_dir":         {"[bot]\ndata_dir = \"\"", "bot.data_dir: must be a folder"},
		"some other database":    {"[storage]\nurl = \"mysql://x\"", "storage.url: must be empty"},
		"PostgreSQL":             {"[storage]\nurl = \"postgresql://x\"", "storage.url: PostgreSQL is not part of this version"},
		"unknown model":          {"[engine]\nmodel = \"big\"", "engine.model: there is no [models.big]; there is default"},
		"openai without model":   {"[models.b]\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1/v1\"", "models.b.model: is missing; name a model"},
		"openai without key":     {"[models.b]\nprovider = \"openai\"\nmodel = \"m\"", "models.b.api_key: is missing"},
		"project is a file":      {"[projects.x]\npath = \"/dev/null\"", "projects.x.path: is no folder"},
		"project without path":   {"[projects.x]\n", "projects.x.path: is missing"},
		"grant without person":   {"[[access.grant]]\nwho = \"cloud:\"\nrole = \"admin\"", "access.grant.who: must be channel:id"},
		"grant without channels": {"[[access.grant]]\nwho = \"cloud:x\"\nrole = \"admin\"", `access.grant.who: there is no [channels.cloud]; there is "*"`},
		"rule of no channel":     {"[[engine.permissions.rule]]\nchannel = \"c\"\ndecision = \"ask\"", "engine.permissions.rule.channel: there is no [channels.c]"},
		"rule without decision":  {"[[engine.permissions.rule]]\ntool = \"shell\"", `engine.permissions.rule.decision: is missing; it wants "allow", "ask" or "deny"`},
		"rule with bad role":     {"[[engine.permissions.rule]]\nrole = \"user\"\ndecision = \"deny\"", "engine.permissions.rule.role: must be"},
		"negative duration":      {"[chat]\nack_after = \"-1s\"", "chat.ack_after: must be at least 0s"},
		"duration in days":       {"[chat]\nack_after = \"2d\"", `chat.ack_after: "2d" is no duration; write "300ms"`},
		"channel name":           {"[channels.\"a:b\"]\nplatform = \"nextcloud-talk\"", `channels."a:b": a name has only letters`},
		"no platform":            {"[channels.a]\nurl = \"x\"", `channels.a.platform: is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := decodeText(base+c.text+"\n", noEnv, talk())
			if err == nil || !strings.Contains(err.Error(), ": "+c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestWhatIsAllowed(t *testing.T) {
	const base = "[models.default]\nprovider = \"offline\"\n"
	for name, text := range map[string]string{
		"every address":         "[server]\nlisten = \":8420\"",
		"IPv6":                  "[server]\nlisten = \"[::1]:0\"",
		"no limits":             "[limits]\nperson_per_hour = 0\nroom_per_hour = 0\ntotal_per_hour = 0",
		"acknowledge at once":   "[chat]\nack_after = \"0s\"\nstatus_after = \"0s\"",
		"grant to everybody":    "[[access.grant]]\nwho = \"*\"\nrole = \"guest\"",
		"grant on any channel":  "[[access.grant]]\nwho = \"*:users/alice\"\nrole = \"guest\"",
		"rule for any channel":  "[[engine.permissions.rule]]\nchannel = \"*\"\ntool = \"x\"\ndecision = \"deny\"",
		"server of one's own":   "[models.b]\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:11434/v1\"\nmodel = \"m\"",
		"empty optional values": "[server]\npublic_url = \"\"\ntoken = \"\"\n[storage]\nurl = \"\"",
		"underscores in number": "[limits]\ntotal_per_hour = 2_000",
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := decodeText(base+text+"\n", noEnv, talk()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLogLevel(t *testing.T) {
	c, _, err := decodeText("models.default.provider = 'offline'\n[log]\nlevel = 'env:LEVEL'\n", environment("LEVEL=debug\n"), talk())
	if err != nil || c.Log.Level != slog.LevelDebug {
		t.Errorf("level %v, error %v", c, err)
	}
}

func TestSecretsAreCollectedAndNotPrinted(t *testing.T) {
	c, _, err := decodeText(fakeChannel+`
key = "channel-secret"
region = "env:REGION"
many = ["env:SHORT"]
[models.b]
provider = "openai"
model = "env:MODEL"
api_key = "env:KEY"
[server]
token = "0123456789abcdef"
`, environment("REGION=region-from-env\nSHORT=short\nMODEL=model-from-env\nKEY=key-from-env\n"), fake())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0123456789abcdef", "channel-secret", "key-from-env", "model-from-env", "region-from-env"}
	if diff := cmp.Diff(want, Secrets(c)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	printed := fmt.Sprintf("%v %+v %#v %+v", c, c, c.Models, c.Borrowed)
	for _, s := range []string{"0123456789abcdef", "channel-secret", "key-from-env"} {
		if strings.Contains(printed, s) {
			t.Errorf("printing the configuration shows %q", s)
		}
	}
}

func TestWhereTheConfigurationIs(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Chdir(t.TempDir())
	if got, err := findConfig("x.toml"); got != "x.toml" || err != nil {
		t.Errorf("named file: %q, %v", got, err)
	}
	_, err := findConfig("")
	if err == nil || !strings.Contains(err.Error(), "bot demo") || strings.Contains(err.Error(), "\n") {
		t.Errorf("with no file: %v", err)
	}
	users := filepath.Join(home, "trill", "trill.toml")
	if err := os.MkdirAll(filepath.Dir(users), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{users, "trill.toml"} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := findConfig(""); got != f || err != nil {
			t.Errorf("found %q, %v; want %q", got, err, f)
		}
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.toml")
	if err := os.WriteFile(large, make([]byte, maxConfig+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.toml"): "no such file; copy config.example.toml there",
		dir:                             "is no regular file",
		large:                           "is larger than",
	} {
		_, _, err := loadConfig(path, noEnv, talk())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
		if _, ok := errors.AsType[configFaults](err); ok {
			t.Errorf("%s: is told as a fault of the text", path)
		}
	}
}

func TestAccessOfAConfiguration(t *testing.T) {
	a := AccessConfig{Default: pipeline.RoleGuest, SelfApprove: true, Grant: []Grant{{Who: "cloud:users/alice", Role: pipeline.RoleAdmin}}}.Access()
	if a.RoleOf("cloud:users/alice") != pipeline.RoleAdmin || a.RoleOf("cloud:users/bob") != pipeline.RoleGuest || !a.SelfApprove {
		t.Errorf("access is %+v", a)
	}
}
