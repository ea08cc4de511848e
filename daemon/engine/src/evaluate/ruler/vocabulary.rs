//! Words for keys and lists. RULER takes them from the package wonderwords; these are our own, so keys differ and their shape does not.

use super::super::seed::Rng;

const ADJECTIVES: &str = "able amber ancient angry ashen azure bashful bitter blank blunt bold brave breezy brief bright brisk broad bronze \
    calm careful casual cheap cheerful chilly civil clean clear clever cloudy clumsy coarse cold common cool copper cosmic crisp crooked \
    crude curious curly damp dapper dark dear deep dense distant double dry dull dusty eager early earnest eastern easy elastic elder \
    electric empty equal even exact faint fair false famous fancy fast fearless feeble fierce final firm flat fluffy fond formal fragile \
    frank free fresh frosty frozen full funny fuzzy gentle giant glad glassy gloomy glossy golden good grand grave great greedy green grim \
    gritty handy happy hard harsh hasty hazy heavy hidden high hollow honest humble hungry icy idle ideal inner ivory jagged jolly joyful \
    just keen kind lame large late lavish lazy lean level light likely little lively lofty lonely long loose loud lovely loyal lucky lunar \
    mad magic major marble mature meek mellow merry mighty mild minor misty modern modest moral mossy muddy mute narrow nasty native neat \
    nervous nimble noble noisy normal northern novel numb odd open orange outer oval pale patient perfect plain playful pleasant plump \
    polite poor prime private proper proud pure purple quaint quick quiet rapid rare ready real remote rich rigid ripe robust rosy rough \
    round royal rude rural rusty sad safe salty sandy scarlet secret serious sharp shiny short shy silent silky silver simple sleepy slim \
    slow small smart smooth soft solar solid sour southern spare spicy square stable stark steady steep stern stiff stormy strange strict \
    strong sturdy subtle sudden sunny super sweet swift tall tame tender tense thick thin thirsty tidy tight timid tiny tough tranquil true \
    upper urban vague vast velvet violet vivid warm wary weak wealthy weary western wet white wide wild willing windy wise wooden woolly \
    worthy young zealous";

const NOUNS: &str = "acorn actor album alley anchor ankle apple apron arch armor arrow artist atlas attic autumn badge bakery balcony ballad \
    bamboo banana banner barn barrel basin basket beach beacon beard beaver bell bench berry bicycle bishop blanket blossom boat bonnet \
    book border bottle boulder bowl branch bread breeze brick bridge broom brother bubble bucket buffalo bundle butter button cabin cable \
    cactus camel camera canal candle canoe canvas canyon captain caravan carpet carrot castle cattle cavern cedar cellar chair chalk chapel \
    cherry chest chimney cider cinema circle citizen clock cloud clover cobbler coffee collar comet compass copper coral corner cottage \
    cotton cradle crane crater crayon cricket crown crystal cupboard curtain cushion dagger daisy dancer desert diamond doctor dolphin \
    donkey dragon drawer dream drum eagle easel echo elbow elephant ember emblem engine envelope evening falcon farmer feather fence fern \
    ferry fiddle field finger fisher flag flame flask flower flute forest fortress fountain fox freight frost galaxy garden garlic gate \
    geyser ginger giraffe glacier glove goblet goose granite grape gravel guitar hammer hammock harbor harvest hazel hedge helmet heron \
    highway hill honey horizon hornet horse hotel hunter island ivy jacket jaguar jersey jewel jigsaw journal jungle juniper kernel kettle \
    keyboard kingdom kitchen kite kitten ladder lagoon lake lantern lark lavender lawyer leaf lemon leopard letter library lighthouse lily \
    linen lion lizard lobster locket lumber magnet mango mantle maple market marsh mason meadow medal melon mentor merchant meteor mill \
    mineral mirror mitten monkey monument moon morning mosaic moss mountain museum mushroom napkin needle nephew nest nickel notebook nurse \
    oak oasis ocean olive onion orchard orchid otter oven owl oyster paddle painter palace panda panther paper parade parcel parrot pasture \
    peach peacock pearl pebble pelican pencil pepper piano picture pigeon pillow pilot pine pirate planet plaza plum pocket poet pond \
    poplar porch potato prairie prince pumpkin puppet quarry quartz queen quilt rabbit raccoon radio raft railway rainbow raven ribbon \
    river robin rocket roof rope rose ruby saddle sailor salmon sandal satchel saucer school scissors sculptor seagull shadow shepherd \
    shovel signal sister sketch sparrow spider spoon spring squirrel stable star statue stone stream summer sunset surgeon swan table \
    tailor teacher temple thistle thunder tiger timber tomato tower trader train tulip tunnel turkey turtle umbrella uncle valley vessel \
    village vineyard violin visitor voyage wagon walnut walrus weaver whale wheat whistle willow window winter wizard wolf wrench writer \
    yacht yard zebra";

fn all(list: &'static str) -> Vec<&'static str> {
    list.split_ascii_whitespace().collect()
}

/// An adjective and a noun, as in `sturdy-lantern`.
pub(super) fn pair(rng: &mut Rng) -> String {
    // Made once: a haystack of other needles asks thousands of times.
    static LISTS: std::sync::LazyLock<(Vec<&str>, Vec<&str>)> = std::sync::LazyLock::new(|| (all(ADJECTIVES), all(NOUNS)));
    format!("{}-{}", rng.pick(&LISTS.0), rng.pick(&LISTS.1))
}

/// Words for lists: these, and those of a corpus, each once, in alphabetical order.
pub(super) fn listed(mut words: Vec<String>) -> Vec<String> {
    words.extend(all(ADJECTIVES).into_iter().chain(all(NOUNS)).map(str::to_owned));
    words.sort_unstable();
    words.dedup();
    words
}
