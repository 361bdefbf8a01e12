package lint

import (
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// form is a form of sentences that a reader has to read twice.
type form struct {
	name  string
	fix   string
	seeds []string // every such sentence has one of the seeds, which is cheaper to find than the form
	is    func(sentence string) bool
}

// forms are counted by TestProse. A sentence of none of these forms is not yet a good one.
var forms = []form{
	{"P1", "a clause as the subject: name the component that acts", []string{"Wh"}, func(s string) bool {
		return clauseFirst.MatchString(s) && !strings.HasSuffix(strings.TrimRightFunc(s, unicode.IsSpace), "?")
	}},
	{"P2", "a pronoun as an actor: name the component", []string{"who"}, regexp.MustCompile(
		`(?:[;:,]|\b(?:and|but|so|for|because|if|than|as|with|by|of|from|to|that|wakes|keeps|leaves|lets)) ` +
			`(?:who|whoever) [a-z]+`).MatchString},
	{"P3", "an old word: use today's", oldWords, regexp.MustCompile(
		`\b(?:` + strings.Join(oldWords, "|") + `)\b`).MatchString},
	{"P4", "two colons or semicolons, and three commas: make two sentences", []string{", "}, func(s string) bool {
		return strings.Count(s, "; ")+strings.Count(s, ": ") >= 2 && strings.Count(s, ", ") >= 3 &&
			!listFirst.MatchString(s)
	}},
	{"P5", "an actor without a name", []string{"body", "Body", "BODY"}, regexp.MustCompile(
		`(?i)\b(?:nobody|somebody)\b`).MatchString},
	{"P6", "a pronoun as a noun: name the thing", []string{" what "}, regexp.MustCompile(
		`\b(?:of|to|for|with|from|behind|before|after|by|and|in|on|than|but|as|leaves|keeps|leave|keep|takes|clears|` +
			`counts|only|all|,) what (?:is|was|were|has|had|have|it|they|comes|came|fails|failed|waits|lies|stands|` +
			`goes|does|did|belongs|needs|can|cannot|may|must|would|the|a|an|another|others)\b`).MatchString},
}

var (
	clauseFirst = regexp.MustCompile(`^(?:Who|Whoever|Whom|Whose|Whatever|Whichever|What) [a-z]`)
	listFirst   = regexp.MustCompile(`^(?:Errors|Reads|Writes|Conflicts|Footprint|Example|For example|Usage)\b`)
	oldWords    = []string{
		"anew", "as ever", "for ever", "all the same", "but for", "be it", "so it is", "not so if", "not so for",
		"goes by", "go by", "beside", "of no use", "at all events", "meanwhile", "likewise",
	}
)

// Hard is a sentence of one of the forms.
type Hard struct {
	File        string // from the root, with slashes
	First, Last int    // the lines of its paragraph
	Form        int    // in forms
	Text        string
}

func (h Hard) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", h.File, h.First, forms[h.Form].name, h.Text)
}

// HardSentences finds the sentences of the forms in the files below root. It reads the comments and the error, log and
// help strings of Go files, and the paragraphs of Markdown outside of code. It leaves out testdata, links, and
// CHANGELOG.md.
func HardSentences(root string) ([]Hard, error) {
	var found []Hard
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "node_modules", "testdata", "vendor", "bin"}, d.Name()):
			return filepath.SkipDir
		case !d.Type().IsRegular() || d.Name() == "CHANGELOG.md":
			return nil
		}
		paragraphs := goText
		switch filepath.Ext(path) {
		case ".md":
			paragraphs = markdownText
		case ".go":
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for line, paragraph := range paragraphs(string(text)) {
			last := line + strings.Count(paragraph, "\n")
			for _, s := range sentences(paragraph) {
				for _, form := range formsOf(s) {
					found = append(found, Hard{filepath.ToSlash(rel), line, last, form, s})
				}
			}
		}
		return nil
	})
	return found, err
}

// formsOf returns the forms of a sentence, as indexes of forms.
func formsOf(sentence string) (which []int) {
	for i, f := range forms {
		has := func(seed string) bool { return strings.Contains(sentence, seed) }
		if slices.ContainsFunc(f.seeds, has) && f.is(sentence) {
			which = append(which, i)
		}
	}
	return which
}

var (
	sentenceEnd = regexp.MustCompile(`[.!?]["')]?\s+`)
	listItem    = regexp.MustCompile(`^\s*(?:[-*]|\d+\.)\s+`)
)

// sentences splits a text. Code, headings and table rows are left out; a list item begins a sentence.
func sentences(text string) (all []string) {
	var lines []string
	flush := func() {
		rest := strings.Join(lines, " ")
		lines = nil
		start := 0
		for _, end := range sentenceEnd.FindAllStringIndex(rest, -1) {
			if beginsSentence(rest[end[1]:]) {
				all = append(all, strings.TrimSpace(rest[start:end[1]]))
				start = end[1]
			}
		}
		if last := strings.TrimSpace(rest[start:]); last != "" {
			all = append(all, last)
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(line, "    ") || strings.ContainsRune("\t#|", rune(line[0])) {
			flush()
			continue
		}
		if item := listItem.FindString(line); item != "" {
			flush()
			trimmed = strings.TrimSpace(line[len(item):])
		}
		lines = append(lines, trimmed)
	}
	flush()
	return all
}

func beginsSentence(text string) bool {
	return text != "" && (text[0] >= 'A' && text[0] <= 'Z' || strings.ContainsRune("\"(`*", rune(text[0])))
}

var (
	endComment = regexp.MustCompile(`\s//\s(.*)$`)
	// told are the strings that a user reads.
	told = regexp.MustCompile(`(?:Errorf|errors\.New|Short:|Long:|Usage:|\.(?:String|Bool|Int|Duration)Var\(|Warn\(|` +
		"Info\\(|Error\\()[^\"`]*\"((?:[^\"\\\\]|\\\\.){12,})\"")
	toldSeeds = []string{"Errorf", "errors.New", "Short:", "Long:", "Usage:", "Var(", "Warn(", "Info(", "Error("}
)

// goText yields the first line and the text of each comment of a Go file, and of each string that a user reads.
func goText(source string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		var block []string
		first, n := 0, 0
		for line := range strings.SplitSeq(source, "\n") {
			n++
			if text, is := commentLine(line); is {
				if block == nil {
					first = n
				}
				block = append(block, text)
				continue
			}
			if block != nil && !yield(first, strings.Join(block, "\n")) {
				return
			}
			block = nil
			if strings.Contains(line, "//") && !strings.Contains(line, "http") {
				m := endComment.FindStringSubmatch(line)
				if m != nil && !strings.HasPrefix(m[1], `"`) && !yield(n, m[1]) {
					return
				}
			}
			has := func(seed string) bool { return strings.Contains(line, seed) }
			if !strings.Contains(line, `"`) || !slices.ContainsFunc(toldSeeds, has) {
				continue
			}
			for _, m := range told.FindAllStringSubmatch(line, -1) {
				if !yield(n, m[1]) {
					return
				}
			}
		}
		if block != nil {
			yield(first, strings.Join(block, "\n"))
		}
	}
}

// commentLine returns the text of a line that is a comment and no directive.
func commentLine(line string) (text string, is bool) {
	text, is = strings.CutPrefix(strings.TrimLeftFunc(line, unicode.IsSpace), "//")
	if !is || strings.HasPrefix(text, "go:") || strings.HasPrefix(text, "nolint") || strings.HasPrefix(text, "line ") {
		return "", false
	}
	if text != "" && unicode.IsSpace(rune(text[0])) {
		text = text[1:]
	}
	return text, true
}

// markdownText yields the first line and the text of each paragraph and each table cell of a page, without code.
func markdownText(page string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		var block []string
		first, n, fenced := 0, 0, false
		for line := range strings.SplitSeq(page, "\n") {
			n++
			if start := strings.TrimLeftFunc(line, unicode.IsSpace); strings.HasPrefix(start, "```") ||
				strings.HasPrefix(start, "~~~") {
				fenced, line = !fenced, ""
			}
			if fenced {
				continue
			}
			if strings.HasPrefix(line, "|") {
				for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
					if !yield(n, strings.TrimSpace(cell)) {
						return
					}
				}
				line = ""
			}
			if strings.TrimSpace(line) == "" {
				if block != nil && !yield(first, strings.Join(block, "\n")) {
					return
				}
				block = nil
				continue
			}
			if block == nil {
				first = n
			}
			block = append(block, line)
		}
		if block != nil {
			yield(first, strings.Join(block, "\n"))
		}
	}
}
