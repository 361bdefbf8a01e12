package lint

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rightAsTheyAre are sentences of a form that are good, each with the reason; at most ten.
var rightAsTheyAre = map[string]string{
	`q, _, err := layer.Ensure(ctx, db, prefix, "orders", layer.Options{}) sent, err := q.Enqueue(ctx, ` +
		`layer.Message{Group: "customer-7", Body: body}) claims, err := q.Receive(ctx, layer.ReceiveOptions{}) ` +
		`err = q.Ack(ctx, claims[0])`: "code, in the documentation of package layer",
}

// TestProse holds the sentences of six forms that a reader has to read twice to the budget in testdata/prose.txt, by
// package or folder of documents. The numbers may only fall. It prints the sentences of a form that is over its budget:
// those on lines that differ from the branch main, if there are any. To lower the budget to the counts of now, also
// after a merge with conflicts in the file: go test ./internal/lint -run TestProse -rewrite
func TestProse(t *testing.T) {
	const list = "testdata/prose.txt"
	require.LessOrEqual(t, len(rightAsTheyAre), 10)
	found, err := HardSentences("../..")
	require.NoError(t, err)
	counts, unused := map[string]counted{}, map[string]bool{}
	for sentence := range rightAsTheyAre {
		unused[sentence] = true
	}
	found = slices.DeleteFunc(found, func(h Hard) bool {
		delete(unused, h.Text)
		return rightAsTheyAre[h.Text] != ""
	})
	require.Empty(t, unused, "exceptions for sentences that are gone")
	for _, h := range found {
		n := counts[path.Dir(h.File)]
		n[h.Form]++
		counts[path.Dir(h.File)] = n
	}
	text, err := os.ReadFile(list)
	require.NoError(t, err)
	if *rewrite {
		require.NoError(t, os.WriteFile(list, []byte(lowered(string(text), counts)), 0o644))
		text, err = os.ReadFile(list)
		require.NoError(t, err)
	}
	budget, err := readBudget(string(text))
	require.NoError(t, err)
	over, under := compare(budget, counts)
	for _, o := range over {
		all := slices.DeleteFunc(slices.Clone(found), func(h Hard) bool {
			return path.Dir(h.File) != o.place || h.Form != o.form
		})
		fresh := changed(all)
		t.Errorf("%s has %d sentences of form %s (%s), and may have %d; %s\n\t%s", o.place, counts[o.place][o.form],
			forms[o.form].name, forms[o.form].fix, budget[o.place][o.form], fresh.title,
			strings.Join(fresh.sentences, "\n\t"))
	}
	for _, place := range under {
		t.Errorf("%s has fewer sentences than its budget in %s: lower it (-run TestProse -rewrite)", place, list)
	}
}

// counted is a number for each of forms.
type counted [6]int

func (c counted) String() string { return strings.Trim(fmt.Sprint([6]int(c)), "[]") }

// readBudget reads lines of a place and its numbers.
func readBudget(text string) (map[string]counted, error) {
	budget := map[string]counted{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) != 1+len(forms) {
			return nil, fmt.Errorf("not a place and %d numbers: %q", len(forms), line)
		}
		var numbers counted
		for i, field := range fields[1:] {
			n, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			numbers[i] = n
		}
		if was, twice := budget[fields[0]]; twice { // two branches have lowered it
			for i := range numbers {
				numbers[i] = min(numbers[i], was[i])
			}
		}
		budget[fields[0]] = numbers
	}
	return budget, nil
}

// lowered returns the text of a budget with no number above the counts. The marks of a merge conflict are dropped.
func lowered(text string, counts map[string]counted) string {
	text = regexp.MustCompile(`(?m)^(<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>).*\n`).ReplaceAllString(text, "")
	budget, err := readBudget(text)
	if err != nil {
		return text // the test says what is wrong
	}
	var head, lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") && !slices.Contains(head, line) {
			head = append(head, line)
		}
	}
	for place, most := range budget {
		for i := range most {
			most[i] = min(most[i], counts[place][i])
		}
		if most != (counted{}) {
			lines = append(lines, place+" "+most.String()+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(append(head, lines...), "")
}

// excess is a form that a place has too often.
type excess struct {
	place string
	form  int
}

// compare returns the forms that are over the budget, and the places of which a number is so far under it that the
// budget must follow: by more than one, and by more than a twentieth. So branches that run at the same time need not
// all change the file.
func compare(budget, counts map[string]counted) (over []excess, under []string) {
	for place, now := range counts {
		for i, n := range now {
			if n > budget[place][i] {
				over = append(over, excess{place, i})
			}
		}
	}
	for place, most := range budget {
		for i, n := range most {
			if n-counts[place][i] > max(1, n/20) {
				under = append(under, place)
				break
			}
		}
	}
	slices.SortFunc(over, func(a, b excess) int {
		return strings.Compare(fmt.Sprint(a.place, a.form), fmt.Sprint(b.place, b.form))
	})
	slices.Sort(under)
	return over, under
}

// printed is sentences for the reader, under a title.
type printed struct {
	title     string
	sentences []string
}

// changed picks the sentences on lines that differ from the branch main. If none does, or if git cannot tell, all are
// picked.
func changed(all []Hard) printed {
	git := func(args ...string) string {
		c := exec.Command("git", args...)
		c.Dir = "../.."
		out, _ := c.Output()
		return string(out)
	}
	differ := map[string]map[int]bool{} // by file; nil = all lines
	for name := range strings.Lines(git("ls-files", "--others", "--exclude-standard", "--", "*.go", "*.md")) {
		differ[strings.TrimSpace(name)] = nil
	}
	file := ""
	for line := range strings.Lines(git("diff", "-U0", "main", "--", "*.go", "*.md")) {
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = strings.TrimSpace(name)
			differ[file] = map[int]bool{}
		}
		if m := regexp.MustCompile(`^@@ .*\+(\d+)(?:,(\d+))? @@`).FindStringSubmatch(line); m != nil && file != "" {
			first, _ := strconv.Atoi(m[1])
			n := 1
			if m[2] != "" {
				n, _ = strconv.Atoi(m[2])
			}
			for i := range n {
				differ[file][first+i] = true
			}
		}
	}
	p := printed{title: "changed since main:"}
	for _, h := range all {
		lines, is := differ[h.File]
		isNew := is && lines == nil
		for line := h.First; line <= h.Last && !isNew; line++ {
			isNew = lines[line]
		}
		if isNew {
			p.sentences = append(p.sentences, h.String())
		}
	}
	if p.sentences == nil {
		p.title = "all of them:"
		for _, h := range all {
			p.sentences = append(p.sentences, h.String())
		}
	}
	return p
}

// TestForms: each form is found in a sentence that has it, and not in one that is plain.
func TestForms(t *testing.T) {
	for sentence, want := range map[string]string{
		"Who loses a conflict goes for a walk.":           "P1",
		"What it says holds.":                             "P1",
		"What is a group?":                                "",
		"The handle wakes, and who waits is woken.":       "P2",
		"The handle asks who has the group.":              "",
		"A claim is made anew.":                           "P3",
		"Meanwhile the group waits.":                      "",
		"The besiders stay.":                              "",
		"It reads a, b, c, and d: each once; none twice.": "P4",
		"Errors: a, b, c, d; others: e.":                  "",
		"SOMEBODY has the group.":                         "P5",
		"It leads to what is held.":                       "P6",
		"It says what is held.":                           "",
		"A claim, and who waits for nobody, beside what is held: a, b; c, or d.": "P2 P3 P4 P5",
	} {
		var names []string
		for _, i := range formsOf(sentence) {
			names = append(names, forms[i].name)
		}
		require.Equal(t, want, strings.Join(names, " "), "%s", sentence)
	}
}

// TestHardSentences: the check reads comments, strings that a user reads, paragraphs and cells. It does not read code,
// directives, testdata and links.
func TestHardSentences(t *testing.T) {
	dir, named := t.TempDir(), strings.NewReplacer("noone", "nobody", "Noone", "Nobody")
	for name, text := range map[string]string{
		"a/a.go": "package a // for noone\n\n//go:generate noone\n\n// One.\n// Noone reads. This\n// is fine (it\n" +
			"// is): noone,\n// again.\n//\n//     noone, as code\n" +
			"var noone = errors.New(\"a: noone has the group\")\nvar _ = \"for noone at all\"\n",
		"a/b.go":          "package a\n\n// Noone at the end of a file.",
		"a/testdata/c.go": "package c // noone\n",
		"docs/a.md": "# Noone\n\nFor\nnoone.\n- an item. Noone\n  reads.\n\n" +
			"```\nnoone\n```\n\n| a | noone |\n    noone\n",
		"CHANGELOG.md":     "For noone.\n",
		"bin/a.md":         "For noone.\n",
		"docs/picture.txt": "For noone.\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(named.Replace(text)), 0o644))
	}
	require.NoError(t, os.Symlink("a.md", filepath.Join(dir, "docs", "link.md")))
	found, err := HardSentences(dir)
	require.NoError(t, err)
	var lines []string
	for _, h := range found {
		lines = append(lines, h.String())
	}
	require.Equal(t, []string{
		"a/a.go:1: P5: for nobody", "a/a.go:5: P5: Nobody reads.", "a/a.go:5: P5: This is fine (it is): nobody, again.",
		"a/a.go:12: P5: a: nobody has the group", "a/b.go:3: P5: Nobody at the end of a file.",
		"docs/a.md:3: P5: For nobody.", "docs/a.md:3: P5: Nobody reads.", "docs/a.md:12: P5: nobody",
	}, lines)
}

// TestBudget: a number over the budget is found, and a number far under it. Nothing raises the budget. A conflict of
// two branches ends with the lower numbers.
func TestBudget(t *testing.T) {
	budget := map[string]counted{"a": {1, 0, 20, 40}, "b": {2}}
	over, under := compare(budget, map[string]counted{"a": {1, 0, 19, 38}, "b": {1}})
	require.Empty(t, over)
	require.Empty(t, under)
	over, under = compare(budget, map[string]counted{"a": {2, 1, 20, 37}, "c": {0, 0, 0, 0, 0, 1}})
	require.Equal(t, []excess{{"a", 0}, {"a", 1}, {"c", 5}}, over)
	require.Equal(t, []string{"a", "b"}, under)

	text := "# head\n<<<<<<< HEAD\na 5 5 5 5 5 5\n=======\na 6 4 5 5 5 5\n>>>>>>> b\nb 1 0 0 0 0 0\n"
	require.Equal(t, "# head\na 5 4 3 5 5 5\n",
		lowered(text, map[string]counted{"a": {9, 9, 3, 9, 9, 9}, "c": {1}}))
	_, err := readBudget("a 1 2\n")
	require.ErrorContains(t, err, "6 numbers")
	_, err = readBudget(text)
	require.Error(t, err)
}
